"""AWS's price list API, as a fake speaks it: a whole answer that can be understood, or an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.price_api import Prices, fetch_prices
from echelon.errors import CloudError
from tests.cloud.price_server import PriceServer, price_server, product

HOME = "us-east-1"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PriceServer, Clients]]:
    with price_server() as (address, state), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_PRICING", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        clients = Clients(HOME)
        clients.call("pricing", "get_products", ServiceCode="AmazonEC2", Filters=[])
        yield state, clients


@pytest.fixture
def api(server: tuple[PriceServer, Clients]) -> PriceServer:
    """The API, with two types of machines in two regions."""
    state, _ = server
    state.page_entries, state.refuses_page = 100, None
    state.products = [
        product(name, region, dollars)
        for name in ("g5.xlarge", "g5.2xlarge")
        for region, dollars in ((HOME, "2.0000000000"), ("eu-central-1", "3.0000000000"))
    ]
    return state


@pytest.fixture
def clients(server: tuple[PriceServer, Clients]) -> Clients:
    return server[1]


def fetch(clients: Clients) -> Prices:
    return fetch_prices(clients, ["g5.xlarge", "g5.2xlarge"], HOME)


@pytest.mark.parametrize("page_entries", [1, 100])
def test_prices_of_all_regions_are_read_over_all_pages(
    api: PriceServer, clients: Clients, page_entries: int
) -> None:
    api.page_entries = page_entries
    each = {HOME: 2.0, "eu-central-1": 3.0}
    assert fetch(clients) == {"g5.xlarge": each, "g5.2xlarge": each}


def test_other_ways_to_buy_the_same_machine_are_left_out(api: PriceServer, clients: Clients) -> None:
    for attributes in (
        {"operatingSystem": "Windows"},
        {"tenancy": "Dedicated"},
        {"preInstalledSw": "SQL Std"},
        {"capacitystatus": "UnusedCapacityReservation"},
        {"marketoption": "CapacityBlock"},
        {"locationType": "AWS Local Zone"},
    ):
        api.products.append(product("g5.xlarge", HOME, "99.0", **attributes))
    assert fetch(clients)["g5.xlarge"][HOME] == 2


def without(path: str) -> dict[str, Any]:
    """A product that lacks a part."""
    entry = product("g5.xlarge", "us-west-2", "1.0")
    inner: Any = entry
    *folders, last = path.split(".")
    for name in folders:
        inner = next(iter(inner.values())) if name == "*" else inner[name]
    del inner[last]
    return entry


def in_unit(unit: str) -> dict[str, Any]:
    entry = product("g5.xlarge", "us-west-2", "1.0")
    (offer,) = entry["terms"]["OnDemand"].values()
    (dimension,) = offer["priceDimensions"].values()
    dimension["unit"] = unit
    return entry


BAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    "no JSON": ("<html>", "cannot be understood"),
    "a list": ("[]", "cannot be understood"),
    "no price": (without("terms"), "terms: Field required"),
    "no region": (without("product.attributes.regionCode"), "regionCode: Field required"),
    "no dollars": (without("terms.OnDemand.*.priceDimensions.*.pricePerUnit.USD"), "USD: Field required"),
    "words": (product("g5.xlarge", "us-west-2", "a dollar"), "USD: .*number"),
    "nothing": (product("g5.xlarge", "us-west-2", "0.0000000000"), "USD: .*greater than 0"),
    "less than nothing": (product("g5.xlarge", "us-west-2", "-1"), "USD: .*greater than 0"),
    "not a number": (product("g5.xlarge", "us-west-2", "NaN"), "USD: "),
    "by the month": (in_unit("Mo"), "unit: .*Hrs"),
    "two prices": (product("g5.xlarge", "us-east-1", "7.0"), "two prices for g5.xlarge in us-east-1"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_answer_that_cannot_be_understood_is_refused(
    case: str, api: PriceServer, clients: Clients
) -> None:
    bad, words = BAD[case]
    api.products.append(bad)
    with pytest.raises(CloudError, match=words):
        fetch(clients)


def test_an_answer_about_another_machine_is_refused(api: PriceServer, clients: Clients) -> None:
    api.products = [json.dumps(product("t3.medium", HOME, "0.04"))]
    with pytest.raises(CloudError, match=r"the price of t3\.medium when asked for that of g5\.xlarge"):
        fetch(clients)


def test_an_answer_in_which_machines_are_missing_is_refused(api: PriceServer, clients: Clients) -> None:
    del api.products[2]  # the second machine at home
    with pytest.raises(CloudError, match=r"no price in us-east-1 for g5\.2xlarge"):
        fetch(clients)


def test_an_answer_that_breaks_off_is_refused(api: PriceServer, clients: Clients) -> None:
    api.page_entries, api.refuses_page = 1, 1
    with pytest.raises(CloudError, match=r"not authorized .*docs/cloud\.md has the policy"):
        fetch(clients)
