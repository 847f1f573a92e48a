"""Types and prices of machines: a dated list (prices.toml), overridden by AWS's latest answer and the user's own list.

Prices serve estimates before anything is made; the provider's bill decides.
"""

from __future__ import annotations

import datetime
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
OLD_DAYS = 90
"""Users of a price list older than this are warned."""
_GIB = 2**30


@dataclass(frozen=True)
class InstanceType:
    """A type of machine that can be rented."""

    vcpus: int
    memory_gib: float
    network_gbit: float
    """Its sustained network rate in each direction."""
    hourly: float
    """US dollars, on demand, in the provider's first region."""
    credits_hourly: float = 0.0
    """US dollars on top of that if all its processors work all the time; 0 if the price covers them."""
    gpu: str = ""
    gpus: int = 0
    gpu_gib: float = 0.0
    """Memory of one GPU."""
    regions: dict[str, float] = field(default_factory=dict)
    """How much more it costs elsewhere, if that is known better than from the list's own `regions`."""

    @property
    def busy_hourly(self) -> float:
        """US dollars, on demand, in the provider's first region, while it computes."""
        return self.hourly + self.credits_hourly

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * _GIB)

    @property
    def network_bytes_per_s(self) -> float:
        return self.network_gbit * 1e9 / 8


@dataclass(frozen=True)
class Extras:
    """Other costs, in US dollars."""

    disk_gb_month: float
    shared_gb_month: float
    address_hour: float
    sent_gb: float


@dataclass(frozen=True)
class PriceList:
    """One provider's machines and prices."""

    date: datetime.date
    source: str
    region: str
    """Where `hourly` holds."""
    spot_share: float
    """What a spare machine costs on the whole, as a share of the price on demand."""
    other: Extras
    regions: dict[str, float]
    """How much more a machine costs elsewhere."""
    machines: dict[str, InstanceType]
    gpus: dict[str, float] = field(default_factory=dict)
    """GPUs that are added to a machine, an hour each."""


def price(provider: Provider, machine_type: str, spot: bool = False, region: str | None = None) -> float:
    """US dollars an hour for one machine; UserError if the list does not have it."""
    prices, facts = price_list(provider), machine(provider, machine_type)
    factor = facts.regions.get(region or "") or _region_factor(provider, prices, region)
    hourly = facts.hourly * factor
    return hourly * prices.spot_share if spot else hourly


def machine(provider: Provider, machine_type: str) -> InstanceType:
    """The facts of one type of machine; UserError if the list does not have it."""
    prices = price_list(provider)
    if machine_type in prices.machines:
        return prices.machines[machine_type]
    near = difflib.get_close_matches(machine_type, prices.machines, n=3)
    meant = f"did you mean {' or '.join(near)}? If not, " if near else ""
    raise UserError(
        f"{machine_type}: the price list of {prices.date} has no such machine of {provider}; {meant}add it to a list "
        f"of your own and name that in {PRICES_VARIABLE}"
    )


def all_machines() -> dict[str, InstanceType]:
    """The machines of every provider, by type."""
    return {
        name: found
        for provider in get_args(Provider)
        for name, found in price_list(provider).machines.items()
    }


def provider_with(machine_type: str) -> Provider | None:
    """The provider whose list has a type of machine."""
    return next((name for name in get_args(Provider) if machine_type in price_list(name).machines), None)


def age_warning(provider: Provider, prices: PriceList, today: datetime.date) -> str | None:
    """A warning about an old price list; None if it is recent."""
    days = (today - prices.date).days
    if days <= OLD_DAYS:
        return None
    remedy = {
        "aws": "`echelon cloud prices --refresh` asks AWS for today's",
        "gcp": f"put today's into a list of your own and name that in {PRICES_VARIABLE}",
    }[provider]
    return f"warning: the prices of {provider} are of {prices.date}, {days} days old; {remedy}"


def price_list(provider: Provider) -> PriceList:
    """All prices of a provider: shipped, overridden by AWS's answers and by $ECHELON_PRICES."""
    asked = asked_path()
    changed_ns = asked.stat().st_mtime_ns if asked and asked.is_file() else None
    return _load(asked if changed_ns else None, changed_ns, os.environ.get(PRICES_VARIABLE))[provider]


def shipped_list(provider: Provider) -> PriceList:
    """All prices of a provider as they come with Echelon."""
    return _load(None, None, None)[provider]


def asked_path() -> Path | None:
    """Where `cloud prices --refresh` keeps AWS's prices; None without a home folder.

    The user's own folder, whatever $ECHELON_CACHE is: prices decide when machines end, so nobody else may write them.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return folder / "echelon" / "prices.toml"


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
def _load(asked: Path | None, _changed_ns: int | None, own: str | None) -> dict[Provider, PriceList]:
    document = tomllib.loads(files("echelon.cloud").joinpath("prices.toml").read_text())
    shipped = lists = _LISTS.validate_python(document)
    if asked is not None:
        newer = _add(document, asked, "delete it, or rewrite it with `echelon cloud prices --refresh`")
        lists = _LISTS.validate_python(newer)
        if lists["aws"].date >= shipped["aws"].date:
            document = newer
        else:  # Echelon was updated since
            lists = shipped
    return _LISTS.validate_python(_add(document, Path(own), PRICES_VARIABLE)) if own else lists


def _add(below: dict[str, Any], path: Path, hint: str) -> dict[str, Any]:
    """The document merged with a file's; UserError, with the hint, if the file is not a price list."""
    try:
        merged = _merge(below, tomllib.loads(path.read_text()))
        _LISTS.validate_python(merged)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror} ({hint})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not TOML: {error} ({hint})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']} ({hint})") from None
    return merged


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
