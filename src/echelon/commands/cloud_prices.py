"""`cloud prices`: the price lists behind bills and plans, and today's prices from AWS."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.console import Console

from echelon.cloud import prices
from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.price_api import API_REGION, Prices, fetch_prices
from echelon.errors import CloudError, UserError
from echelon.explain.tables import render_table
from echelon.recipe.toml import dump_table
from echelon.runfolder import write_atomically

_HEAD = "# What AWS told `echelon cloud prices --refresh`; without this file, the prices shipped with Echelon hold.\n"


@dataclass(frozen=True)
class Refreshed:
    """AWS's prices, and what they changed."""

    path: str
    date: str
    machines: int
    regions: int
    changed: dict[str, tuple[float, float]]
    """Machines whose price in the list's own region was another: before and now, in US dollars an hour."""


def refresh_prices(today: datetime.date, console: Console) -> Refreshed:
    """Fetch the prices of all machines of the list from AWS and store them; on CloudError the old list stays."""
    path = prices.asked_path()
    if path is None:
        raise UserError("there is no home folder to keep prices in; set XDG_CACHE_HOME")
    shipped = prices.shipped_list("aws")
    clients = Clients(API_REGION)
    console.print(
        f"asking AWS for the prices of {len(shipped.machines)} types of machines ...", highlight=False
    )
    try:
        found = fetch_prices(clients, sorted(shipped.machines), shipped.region)
    except CloudError as error:
        raise CloudError(f"{error}; the prices of before are kept") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _HEAD + dump_table(render_prices(found, shipped, today)))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    changed = {
        name: (facts.hourly, found[name][shipped.region])
        for name, facts in shipped.machines.items()
        if found[name][shipped.region] != facts.hourly
    }
    regions = {region for by_region in found.values() for region in by_region}
    return Refreshed(str(path), str(today), len(found), len(regions), changed)


def render_prices(found: Prices, shipped: prices.PriceList, today: datetime.date) -> dict[str, Any]:
    """AWS's prices in the form of prices.toml."""
    home = shipped.region
    machines = {
        name: {
            "hourly": by_region[home],
            "regions": {
                region: round(hourly / by_region[home], 6)
                for region, hourly in sorted(by_region.items())
                if region != home
            },
        }
        for name, by_region in found.items()
    }
    source = f"AWS's price list API, Linux, {home}; disks, files and addresses of {shipped.date}"
    return {"aws": {"date": str(today), "source": source, "machines": machines}}


def format_refreshed(result: Refreshed) -> str:
    lines = [f"{result.path}: {result.machines} types of machines in {result.regions} regions, {result.date}"]
    lines += [
        f"  {name}: ${before:g} an hour in the shipped list, ${now:g} today"
        for name, (before, now) in result.changed.items()
    ]
    return "\n".join([*lines, *([] if result.changed else ["  nothing has changed"])])


def listed_prices(today: datetime.date) -> dict[str, Any]:
    """What `cloud prices --json` prints."""
    lists = {provider: prices.price_list(provider) for provider in get_args(prices.Provider)}
    return {
        provider: {
            "date": str(found.date),
            "source": found.source,
            "region": found.region,
            "warning": prices.age_warning(provider, found, today),
            "machines": {name: asdict(facts) for name, facts in found.machines.items()},
        }
        for provider, found in lists.items()
    }


def format_prices(lists: dict[str, Any], width: int | None = None) -> str:
    """A table for each provider, with its date."""
    return "\n\n".join(_format_price_list(provider, entries, width) for provider, entries in lists.items())


def _format_price_list(provider: str, listed: dict[str, Any], width: int | None) -> str:
    rows = [("MACHINE", "VCPUS", "MEMORY", "GPUS", "AN HOUR")]
    rows += [
        (
            name,
            str(facts["vcpus"]),
            f"{facts['memory_gib']:g} GiB",
            f"{facts['gpus']} x {facts['gpu']}" if facts["gpus"] else "",
            f"${facts['hourly']:.4f}",
        )
        for name, facts in listed["machines"].items()
    ]
    head = f"{provider}, {listed['region']}: prices of {listed['date']} ({listed['source']})"
    warning = [listed["warning"]] if listed["warning"] else []
    return "\n".join([head, *warning, render_table(rows, width)])
