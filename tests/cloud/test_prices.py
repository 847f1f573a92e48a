"""The price list can be read, is sane, and a user's own list goes before it."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from echelon.cloud.prices import (
    HOURS_PER_MONTH,
    Provider,
    age_warning,
    asked_path,
    machine,
    price,
    price_list,
)
from echelon.errors import UserError


@pytest.mark.parametrize("provider", get_args(Provider))
def test_every_machine_of_the_list_is_possible(provider: Provider) -> None:
    prices = price_list(provider)
    assert prices.machines
    assert prices.regions[prices.region] == 1.0
    for name, facts in prices.machines.items():
        assert facts.hourly > 0, name
        assert facts.vcpus > 0, name
        assert (facts.gpus > 0) == bool(facts.gpu) == (facts.gpu_gib > 0), name
        assert 0 < price(provider, name, spot=True) < price(provider, name), name


def test_larger_machines_of_a_family_cost_more() -> None:
    sizes = ("xlarge", "2xlarge", "4xlarge", "8xlarge")
    costs = [price("aws", f"g4dn.{size}") for size in sizes]
    assert costs == sorted(costs)


def test_facts_come_in_bytes() -> None:
    facts = machine("aws", "g4dn.xlarge")
    assert (facts.gpu, facts.gpus, facts.gpu_gib) == ("T4", 1, 16)
    assert facts.memory_bytes == 16 * 2**30
    assert facts.network_bytes_per_s == 5e9 / 8
    assert HOURS_PER_MONTH == 8760 / 12


def test_a_region_costs_more() -> None:
    assert price("aws", "g5.xlarge", region="eu-central-1") == pytest.approx(1.006 * 1.25)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UserError, match=r"did you mean .*g4dn\.xlarge"):
        machine("aws", "g4dn.xlrge")


def test_an_unknown_region_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"mars-1.*ECHELON_PRICES"):
        price("aws", "g5.xlarge", region="mars-1")


def test_the_users_own_list_adds_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(
        '[aws.machines."g5.xlarge"]\nhourly = 0.5\n'
        '[aws.machines."x9.large"]\nvcpus = 2\nmemory_gib = 8\nnetwork_gbit = 1\nhourly = 0.1\n'
    )
    monkeypatch.setenv("ECHELON_PRICES", str(own))
    assert price("aws", "g5.xlarge") == 0.5
    assert machine("aws", "g5.xlarge").gpu == "A10G"
    assert price("aws", "x9.large") == 0.1
    assert price("aws", "g4dn.xlarge") == 0.526


@pytest.mark.parametrize("text", ["[aws.machines.x]\nhourly = 1\n", "= 3", None])
def test_a_bad_list_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    own = tmp_path / "own.toml"
    if text is not None:
        own.write_text(text)
    monkeypatch.setenv("ECHELON_PRICES", str(own))
    with pytest.raises(UserError, match=r"own\.toml"):
        price("aws", "g5.xlarge")


@pytest.mark.parametrize(("days", "warns"), [(-1, False), (0, False), (90, False), (91, True), (400, True)])
def test_whoever_counts_with_an_old_list_is_told_its_date(days: int, warns: bool) -> None:
    prices = replace(price_list("aws"), date=datetime.date(2026, 1, 31))
    warning = age_warning("aws", prices, prices.date + datetime.timedelta(days=days))
    assert (warning is not None) == warns
    if warning:
        assert f"are of 2026-01-31, {days} days old; `echelon cloud prices --refresh`" in warning


def test_google_s_prices_cannot_be_asked_for() -> None:
    warning = age_warning("gcp", price_list("gcp"), datetime.date(2099, 1, 1))
    assert warning
    assert "--refresh" not in warning
    assert "ECHELON_PRICES" in warning


def test_what_aws_said_is_kept_in_the_users_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", "/shared")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/cache")
    assert asked_path() == Path("/home/me/cache/echelon/prices.toml")
