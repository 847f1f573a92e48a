"""Today's machine prices, from AWS's price list API (pricing:GetProducts)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from echelon.cloud.aws.calls import Clients
from echelon.errors import CloudError

API_REGION = "us-east-1"
"""One of the few regions that answer; they tell the prices of all."""
_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}

Prices = dict[str, dict[str, float]]
"""US dollars an hour, by type of machine and region."""


class _Attributes(BaseModel):
    instanceType: str
    regionCode: str
    locationType: str


class _Product(BaseModel):
    attributes: _Attributes


class _Dollars(BaseModel):
    USD: Annotated[float, Field(gt=0, lt=10_000)]


class _Dimension(BaseModel):
    unit: Literal["Hrs"]
    pricePerUnit: _Dollars


class _Offer(BaseModel):
    priceDimensions: Annotated[dict[str, _Dimension], Field(min_length=1, max_length=1)]


class _Terms(BaseModel):
    OnDemand: Annotated[dict[str, _Offer], Field(min_length=1, max_length=1)]


class _Entry(BaseModel):
    """The parts of a price list entry that we read."""

    product: _Product
    terms: _Terms

    @property
    def hourly(self) -> float:
        (offer,) = self.terms.OnDemand.values()
        (dimension,) = offer.priceDimensions.values()
        return dimension.pricePerUnit.USD


def fetch_prices(clients: Clients, types: Sequence[str], home: str) -> Prices:
    """On-demand prices of all types in all regions that have them; CloudError unless all have one in `home`."""
    prices = {machine_type: _fetch_type(clients, machine_type) for machine_type in types}
    missing = [machine_type for machine_type, found in prices.items() if home not in found]
    if missing:
        raise CloudError(f"AWS gave no price in {home} for {', '.join(missing)}")
    return prices


def _fetch_type(clients: Clients, machine_type: str) -> dict[str, float]:
    wanted = {"instanceType": machine_type, **_ON_DEMAND}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    entries = clients.pages(
        "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters, MaxResults=100
    )
    prices: dict[str, float] = {}
    for text in entries:
        entry = _read_entry(text, machine_type)
        place = entry.product.attributes
        if place.locationType != "AWS Region":  # a Local Zone, in which we rent nothing
            continue
        if prices.setdefault(place.regionCode, entry.hourly) != entry.hourly:
            raise CloudError(f"AWS gave two prices for {machine_type} in {place.regionCode}")
    return prices


def _read_entry(text: object, machine_type: str) -> _Entry:
    try:
        entry = _Entry.model_validate_json(str(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise CloudError(
            f"AWS's price of {machine_type} cannot be understood ({where}: {first['msg']})"
        ) from None
    found = entry.product.attributes.instanceType
    if found != machine_type:
        raise CloudError(f"AWS gave the price of {found} when asked for that of {machine_type}")
    return entry
