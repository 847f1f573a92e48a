"""`cloud prices`: what it shows, and `--refresh` against a fake of AWS's price list API."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from echelon.cloud import prices
from echelon.cloud.prices import machine, price, price_list, shipped_list
from echelon.commands.cloud_prices import (
    Refreshed,
    format_prices,
    format_refreshed,
    listed_prices,
    refresh_prices,
)
from echelon.errors import CloudError, UserError
from tests.cloud.price_server import PriceServer, price_server, product

TODAY = datetime.date(2031, 5, 4)
TYPES = sorted(shipped_list("aws").machines)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where prices are kept in this test."""
    path = tmp_path / "echelon" / "prices.toml"
    monkeypatch.setattr(prices, "asked_path", lambda: path)
    return path


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceServer]:
    """AWS's API, in which every machine of our list costs $2 at home and $3 in Frankfurt."""
    with price_server() as (address, state):
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        for region, dollars in (("us-east-1", "2.0000000000"), ("eu-central-1", "3.0000000000")):
            state.products += [product(name, region, dollars) for name in TYPES]
        yield state


def refresh(today: datetime.date = TODAY) -> Refreshed:
    return refresh_prices(today, Console(quiet=True))


def test_prices_of_today_replace_those_of_the_list(asked: Path, api: PriceServer) -> None:
    result = refresh()
    assert (result.machines, result.regions, len(result.changed)) == (len(TYPES), 2, len(TYPES))
    assert result.path == str(asked)
    assert price_list("aws").date == TODAY
    assert "disks, files and addresses of 20" in price_list("aws").source
    assert price("aws", "g5.xlarge") == 2
    assert price("aws", "g5.xlarge", region="us-east-1") == 2
    assert price("aws", "g5.xlarge", region="eu-central-1") == pytest.approx(3)
    assert price("aws", "g5.xlarge", region="sa-east-1") == pytest.approx(2 * 1.7), "AWS said nothing of it"
    assert machine("aws", "g5.xlarge").gpu == "A10G", "what a machine is stays"
    assert price_list("gcp") == shipped_list("gcp")


def test_a_region_that_the_list_does_not_know_is_known_after_aws_was_asked(
    asked: Path, api: PriceServer
) -> None:
    api.products.append(product("g5.xlarge", "mars-1", "5.0"))
    refresh()
    assert price("aws", "g5.xlarge", region="mars-1") == pytest.approx(5)


def test_the_users_own_list_goes_before_what_aws_said(
    asked: Path, api: PriceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh()
    own = tmp_path / "own.toml"
    own.write_text('[aws.machines."g5.xlarge"]\nhourly = 0.5\n')
    monkeypatch.setenv("ECHELON_PRICES", str(own))
    assert price("aws", "g5.xlarge") == 0.5
    assert price("aws", "g5.xlarge", region="eu-central-1") == pytest.approx(0.75)
    assert price("aws", "g4dn.xlarge") == 2


def test_an_answer_that_cannot_be_understood_changes_nothing(asked: Path, api: PriceServer) -> None:
    refresh(TODAY)
    before = asked.read_bytes()
    api.products.append("<html>")
    with pytest.raises(CloudError, match=r"cannot be understood .*; the prices of before are kept"):
        refresh(TODAY + datetime.timedelta(days=1))
    assert asked.read_bytes() == before
    assert price_list("aws").date == TODAY


def test_what_was_asked_before_an_update_of_echelon_is_passed_over(asked: Path, api: PriceServer) -> None:
    refresh(shipped_list("aws").date - datetime.timedelta(days=1))
    assert price_list("aws") == shipped_list("aws")


def test_a_damaged_file_of_prices_is_named_and_written_anew(asked: Path, api: PriceServer) -> None:
    asked.parent.mkdir()
    asked.write_text("[aws.machines]\nx = 1\n")
    with pytest.raises(UserError, match=r"prices\.toml: aws\.machines\.x: .*--refresh"):
        price("aws", "g5.xlarge")
    refresh()
    assert price("aws", "g5.xlarge") == 2


def test_the_list_and_its_refreshing_in_words(asked: Path, api: PriceServer) -> None:
    old = format_prices(listed_prices(shipped_list("aws").date + datetime.timedelta(days=91)))
    assert "\nwarning: the prices of aws are of 20" in old
    words = format_refreshed(refresh())
    assert f"{asked}: {len(TYPES)} types of machines in 2 regions, 2031-05-04\n" in words
    assert "\n  g5.xlarge: $1.006 an hour in the shipped list, $2 today" in words
    fresh = format_prices(listed_prices(TODAY))
    assert fresh.startswith("aws, us-east-1: prices of 2031-05-04 (AWS's price list API, ")
    assert "prices of aws are of" not in fresh
    assert "\ng5.12xlarge    48     192 GiB   4 x A10G       $2.0000\n" in fresh
