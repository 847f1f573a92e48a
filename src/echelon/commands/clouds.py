"""`cloud`: rented machines, from the bill before to the bill after."""

from __future__ import annotations

import datetime
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.cloud.aws.calls import Clients, configured_region
from echelon.cloud.aws.listing import Found, find_everything
from echelon.cloud.aws.quotas import check_quota
from echelon.cloud.aws.site import spot_price
from echelon.cloud.cost import bill_words, estimate
from echelon.cloud.inventory import host_name
from echelon.cloud.journal import Cluster, Journal, known_clusters
from echelon.cloud.lifecycle import (
    Removed,
    bring_up,
    cost_so_far,
    left_words,
    needs_new_time,
    take_down,
)
from echelon.cloud.prices import age_warning, price, price_list
from echelon.cloud.spec import ClusterSpec, allowed_network, load_spec
from echelon.commands.renting import make_ready
from echelon.errors import CloudError, UserError
from echelon.explain.tables import render_table

_OWN_ADDRESS = "https://checkip.amazonaws.com"
Ask = Callable[[str], bool]


@dataclass(frozen=True)
class Listed:
    """A cluster as `cloud list` shows it."""

    name: str
    region: str
    state: str
    machines: int
    hours: float | None
    cost: float | None
    """US dollars so far, by our list."""
    ends_in_hours: float | None
    is_written_down: bool
    found: list[Found]


def up(path: Path, ask: Ask, console: Console) -> dict[str, Any]:
    """Show the bill, ask, make the cluster, and wait until its hosts are ready; what `cloud up --json` prints."""
    spec = load_spec(path, ClusterSpec)
    clients = Clients(spec.region)
    known = Journal(spec.name).read()
    bill = estimate(spec, spot_price(clients, spec) if spec.spot else None)
    is_over = known is not None and needs_new_time(known, clients)
    if known is None or is_over:
        check_quota(clients, spec, spec.count)
    ssh_from = known.ssh_from if known else str(_who_may_log_in(spec))
    tell = _teller(console)
    tell(bill_words(spec, bill))
    warning = age_warning(spec.provider, price_list(spec.provider), datetime.date.today())
    if warning:
        tell(f"  {warning}")
    if known and is_over:
        cost = cost_so_far(known, time.time())
        tell(f"  so far            ${cost:8.2f}: its time is over")
    tell(f"  SSH is open to {ssh_from} only")
    if not ask("Rent these machines?"):
        raise UserError("nothing was made")
    cluster = bring_up(spec, bill, ssh_from, clients, tell)
    make_ready(cluster, console)
    return {
        "name": spec.name,
        "hosts": [host_name(spec.name, host.number) for host in cluster.hosts],
        "ssh_config": str(Journal(spec.name).ssh_config),
        "hourly": bill.hourly,
        "most": bill.most,
        "ends": cluster.deadline,
    }


def up_words(result: dict[str, Any]) -> str:
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(result["ends"]))
    name = result["name"]
    return (
        f"{name} is ready: {', '.join(result['hosts'])}; ${result['hourly']:.2f} an hour until {ends} at the latest\n"
        f"`echelon train RECIPE --cluster {name}` trains there, `echelon cloud down {name}` ends it"
    )


def _who_may_log_in(spec: ClusterSpec) -> object:
    if spec.ssh_from != "auto":
        return allowed_network(spec.ssh_from)
    try:
        with urllib.request.urlopen(_OWN_ADDRESS, timeout=10) as answer:
            return allowed_network(answer.read(100).decode().strip())
    except (OSError, ValueError):
        raise UserError(
            f"{_OWN_ADDRESS} does not say which address this machine is seen at; name it with ssh_from ="
        ) from None


def _teller(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def down(name: str, region: str | None, ask: Ask, console: Console) -> Removed:
    """Remove a cluster, with its files; CloudError where something is left."""
    known = Journal(name).read()
    place = known.spec.region if known else region or default_region()
    if not ask(f"Remove {name} in {place}: its machines, and all files in its shared file system?"):
        raise UserError("nothing was removed")
    removed = take_down(name, Clients(place), _teller(console), time.time())
    if removed.left:
        raise CloudError(left_words(name, removed.left))
    return removed


def down_words(removed: Removed) -> str:
    cost = f"; it has cost about ${removed.cost:.2f}" if removed.cost is not None else ""
    return f"nothing is left of {removed.name}{cost}"


def list_clusters(region: str | None) -> list[Listed]:
    """All clusters: those that are written down here, and those that only their tags know of."""
    journals = {name: Journal(name).require() for name in known_clusters()}
    regions = {cluster.spec.region for cluster in journals.values()} | {region or default_region()}
    found = {place: find_everything(Clients(place)) for place in sorted(regions)}
    now, listed = time.time(), list[Listed]()
    for name, cluster in journals.items():
        own = [each for each in found[cluster.spec.region] if each.cluster == name]
        listed.append(_list_known(cluster, own, now))
    for place, everything in found.items():
        strangers = {each.cluster for each in everything if each.cluster not in journals}
        listed += [
            _list_stranger(name, place, [each for each in everything if each.cluster == name], now)
            for name in sorted(strangers)
        ]
    return listed


def _list_known(cluster: Cluster, found: list[Found], now: float) -> Listed:
    machines = [each for each in found if each.kind == "machine" and each.state in ("pending", "running")]
    whole = len(machines) == cluster.spec.count
    if whole:
        state = "running"
    elif machines:
        state = f"{len(machines)} of {cluster.spec.count} running"
    elif not cluster.hosts:
        state = "half made"
    else:
        state = "ended, its files are kept" if cluster.spec.shared else "ended"
    return Listed(
        cluster.spec.name,
        cluster.spec.region,
        state,
        len(machines),
        (now - cluster.created) / 3600,
        cost_so_far(cluster, now),
        max(0.0, (cluster.deadline - now) / 3600),
        True,
        found,
    )


def _list_stranger(name: str, region: str, found: list[Found], now: float) -> Listed:
    machines = [each for each in found if each.kind == "machine" and each.started]
    hours = max(((now - each.started) / 3600 for each in machines), default=None)
    try:
        cost = sum(
            price("aws", each.machine_type, each.is_spot, region) * (now - each.started) / 3600
            for each in machines
        )
    except UserError:
        cost = None
    state = "not written down here"
    return Listed(name, region, state, len(machines), hours, cost if machines else None, None, False, found)


def list_words(listed: list[Listed]) -> str:
    """A table, and what to do about clusters that nobody remembers."""
    if not listed:
        return "there are no rented machines"
    rows = [("NAME", "REGION", "MACHINES", "STATE", "AGE", "COST SO FAR", "ENDS IN")]
    rows += [
        (
            each.name,
            each.region,
            str(each.machines),
            each.state,
            _hours(each.hours),
            "" if each.cost is None else f"${each.cost:.2f}",
            _hours(each.ends_in_hours) if each.machines else "",
        )
        for each in listed
    ]
    hints = [
        f"`echelon cloud down {each.name} --region {each.region}` removes what is left of {each.name}: "
        + ", ".join(f"{thing.kind} {thing.id}" for thing in each.found)
        for each in listed
        if not each.is_written_down
    ]
    return "\n".join([render_table(rows), *hints])


def _hours(hours: float | None) -> str:
    if hours is None:
        return ""
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"


def listed_json(listed: list[Listed]) -> list[dict[str, Any]]:
    return [asdict(each) for each in listed]


def ssh_command(name: str, number: int, port: int | None, command: list[str]) -> list[str]:
    """What leads to a host of a cluster; `port` of its loopback then answers on this machine's."""
    cluster = Journal(name).require()
    if number not in {host.number for host in cluster.hosts}:
        raise UserError(f"{name} has hosts 0 to {cluster.spec.count - 1}, not {number}")
    forward = ["-L", f"127.0.0.1:{port}:127.0.0.1:{port}"] if port else []
    return ["ssh", "-F", str(Journal(name).ssh_config), *forward, host_name(name, number), *command]


def default_region() -> str:
    """The region that the user's own configuration names."""
    return configured_region() or "us-east-1"
