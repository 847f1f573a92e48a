"""What rented machines are and cost: a dated list (prices.toml), which the user's own list adds to.

Prices are for estimates before anything is made; what a provider charges is what it charges.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from echelon.errors import UserError

Provider = Literal["aws", "gcp"]
PRICES_VARIABLE = "ECHELON_PRICES"
HOURS_PER_MONTH = 730.0
_GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """A type of machine that can be rented."""

    vcpus: int
    memory_gib: float
    network_gbit: float
    """What its line carries for hours, each way."""
    hourly: float
    """US dollars, on demand, in the provider's first region."""
    gpu: str = ""
    gpus: int = 0
    gpu_gib: float = 0.0
    """Memory of one GPU."""

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * _GIB)

    @property
    def gpu_memory_bytes(self) -> int:
        return int(self.gpu_gib * _GIB)

    @property
    def network_bytes_per_s(self) -> float:
        return self.network_gbit * 1e9 / 8


@dataclass(frozen=True)
class Extras:
    """What else costs, in US dollars."""

    disk_gb_month: float
    shared_gb_month: float
    address_hour: float
    sent_gb: float


@dataclass(frozen=True)
class PriceList:
    """One provider's machines and prices."""

    date: str
    source: str
    region: str
    """Where `hourly` holds."""
    spot_share: float
    """What a spare machine costs on the whole, as a share of the price on demand."""
    other: Extras
    regions: dict[str, float]
    """How much more a machine costs elsewhere."""
    machines: dict[str, Machine]
    gpus: dict[str, float] = field(default_factory=dict)
    """GPUs that are added to a machine, an hour each."""


def price(provider: Provider, machine_type: str, spot: bool = False, region: str | None = None) -> float:
    """US dollars an hour for one machine; UserError where the list does not have it."""
    prices = price_list(provider)
    hourly = machine(provider, machine_type).hourly * _region_factor(provider, prices, region)
    return hourly * prices.spot_share if spot else hourly


def machine(provider: Provider, machine_type: str) -> Machine:
    """The facts of one type of machine; UserError where the list does not have it."""
    prices = price_list(provider)
    if machine_type in prices.machines:
        return prices.machines[machine_type]
    near = difflib.get_close_matches(machine_type, prices.machines, n=3)
    meant = f"did you mean {' or '.join(near)}? If not, " if near else ""
    raise UserError(
        f"{machine_type}: the price list of {prices.date} has no such machine of {provider}; {meant}add it to a list "
        f"of your own and name that in {PRICES_VARIABLE}"
    )


def all_machines() -> dict[str, Machine]:
    """The machines of every provider, by type."""
    return {
        name: found
        for provider in get_args(Provider)
        for name, found in price_list(provider).machines.items()
    }


def price_list(provider: Provider) -> PriceList:
    """All prices of a provider, with what the file in $ECHELON_PRICES adds or replaces."""
    return _load(os.environ.get(PRICES_VARIABLE))[provider]


def _region_factor(provider: Provider, prices: PriceList, region: str | None) -> float:
    if region is None:
        return 1.0
    if region not in prices.regions:
        raise UserError(
            f"{region}: the price list of {prices.date} does not know this region of {provider}; add a line to "
            f"[{provider}.regions] in a list of your own and name that in {PRICES_VARIABLE}"
        )
    return prices.regions[region]


_LISTS = TypeAdapter(dict[Provider, PriceList])


@cache
def _load(own: str | None) -> dict[Provider, PriceList]:
    document = tomllib.loads(files("echelon.cloud").joinpath("prices.toml").read_text())
    if not own:
        return _LISTS.validate_python(document)
    try:
        return _LISTS.validate_python(_merge(document, tomllib.loads(Path(own).read_text())))
    except OSError as error:
        raise UserError(f"{own}: cannot be read: {error.strerror} ({PRICES_VARIABLE})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{own}: is not TOML: {error} ({PRICES_VARIABLE})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{own}: {where}: {first['msg']} ({PRICES_VARIABLE})") from None


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
