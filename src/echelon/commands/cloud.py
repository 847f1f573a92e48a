"""`cloud`: rent machines, list them, log in and remove them."""

from __future__ import annotations

import datetime
import shutil
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.cloud.aws.calls import Clients, configured_region
from echelon.cloud.aws.location import spot_price
from echelon.cloud.aws.owner import account_of, find_caller, require_owner
from echelon.cloud.aws.quotas import check_quota
from echelon.cloud.aws.resources import Resource, find_everything
from echelon.cloud.bill import Bill, estimate, format_bill
from echelon.cloud.cluster_spec import ClusterSpec, allowed_network, load_spec
from echelon.cloud.inventory import host_name
from echelon.cloud.journal import ClusterRecord, Journal, known_clusters, suggest_name
from echelon.cloud.lifecycle import (
    Removed,
    bring_up,
    check_new,
    cost_so_far,
    format_kept,
    format_left,
    needs_new_time,
    require_same_spec,
    take_down,
    undo,
)
from echelon.cloud.prices import age_warning, machine, price, price_list
from echelon.commands.cloud_vertex import Ask
from echelon.commands.rented_hosts import make_ready
from echelon.errors import CloudError, UserError
from echelon.explain.tables import render_table

_OWN_ADDRESS = "https://checkip.amazonaws.com"


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
    found: list[Resource]


def up(path: Path, ask: Ask, console: Console, *, is_forced: bool = False) -> dict[str, Any]:
    """Show the bill, ask, make the cluster, and wait until its hosts are ready; return what `cloud up --json` prints.

    UserError if the cluster is somebody else's, unless `is_forced`.
    """
    spec = load_spec(path, ClusterSpec)
    listed = None if spec.spot else estimate(spec)  # a wrong type or budget is reported before AWS is asked
    clients = Clients(spec.region)
    known = Journal(spec.name).read()
    _check_before(spec, known, clients, is_forced)
    bill = listed or estimate(spec, spot_price(clients, spec))
    is_over = known is not None and needs_new_time(known, clients)
    if known is None or is_over:
        check_quota(clients, spec, spec.count)
    ssh_from = _who_may_log_in(spec, known)
    tell = _teller(console)
    tell(format_bill(spec, bill))
    warning = age_warning(spec.provider, price_list(spec.provider), datetime.date.today())
    if warning:
        tell(f"  {warning}")
    if known and is_over:
        cost = cost_so_far(known, time.time())
        tell(f"  so far            ${cost:8.2f}: its time is over")
    tell(_format_way_in(spec, ssh_from, known))
    question = f"Make what is missing of {spec.name}?" if known and not is_over else "Rent these machines?"
    if not ask(question):
        raise UserError("nothing was made")
    try:
        cluster = bring_up(spec, bill, ssh_from, clients, tell)
        make_ready(cluster, console)
        return _render_ready(cluster, bill)
    except KeyboardInterrupt as error:
        if known and known.hosts:
            raise CloudError(f"interrupted\n{format_kept(Journal(spec.name).require())}") from None
        raise undo(spec.name, clients, error, tell) from None


def _render_ready(cluster: ClusterRecord, bill: Bill) -> dict[str, Any]:
    spec = cluster.spec
    return {
        "name": spec.name,
        "zone": cluster.zone,
        "hosts": [host_name(spec.name, host.number) for host in cluster.hosts],
        "ssh_config": str(Journal(spec.name).ssh_config),
        "hourly": bill.hourly,
        "most": bill.most,
        "ends": cluster.deadline,
    }


def format_up(result: dict[str, Any]) -> str:
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(result["ends"]))
    name = result["name"]
    return (
        f"{name} is ready in {result['zone']}: {', '.join(result['hosts'])}; ${result['hourly']:.2f} an hour until "
        f"{ends} at the latest\n"
        f"`echelon train RECIPE --cluster {name}` trains there, `echelon cloud down {name}` ends it"
    )


def _check_before(spec: ClusterSpec, known: ClusterRecord | None, clients: Clients, is_forced: bool) -> None:
    """UserError for anything that would fail after the question."""
    for tool in ("aws", "session-manager-plugin") if spec.ssm else ():
        if shutil.which(tool) is None:
            raise UserError(
                f"ssm = true needs `{tool}` on this machine: install AWS's command line and its plugin"
            )
    if known is None:
        check_new(clients, spec)
    else:
        require_same_spec(known, spec)
        require_owner(spec.name, [known.owner], find_caller(clients), is_forced=is_forced)


def _format_way_in(spec: ClusterSpec, ssh_from: str, known: ClusterRecord | None) -> str:
    if spec.ssm:
        return "  no port is open; SSH goes through AWS's Session Manager"
    through = f", through {spec.proxy_jump}" if spec.proxy_jump else ""
    before = f", and no longer to {known.ssh_from}" if known and known.ssh_from != ssh_from else ""
    return f"  SSH is open to {ssh_from} only{through}{before}"


def _who_may_log_in(spec: ClusterSpec, known: ClusterRecord | None) -> str:
    """The network that may log in; empty if no port is opened for that."""
    if spec.ssm:
        return ""
    if spec.ssh_from != "auto":
        return spec.ssh_from
    try:
        with urllib.request.urlopen(_OWN_ADDRESS, timeout=10) as answer:
            return str(allowed_network(answer.read(100).decode().strip()))
    except (OSError, ValueError):
        if known is not None:
            return known.ssh_from
        raise UserError(
            f"{_OWN_ADDRESS} does not say which address this machine is seen at; name it with ssh_from ="
        ) from None


def _teller(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


def down(name: str, region: str | None, ask: Ask, console: Console, *, is_forced: bool = False) -> Removed:
    """Remove a cluster, with its files; CloudError if something is left.

    UserError if there is none of that name. Also if it is somebody else's, or if results would be lost with it, unless
    `is_forced`.
    """
    recorded = Journal(name).read()
    place = region or (recorded.spec.region if recorded else default_region())
    known = Journal(name, place).read()
    _require_removable(name, known, Clients(place), is_forced)
    if not ask(f"Remove {name} in {place}: its machines, and all files in its shared file system?"):
        raise UserError("nothing was removed")
    removed = take_down(name, Clients(place), _teller(console), time.time())
    if removed.left:
        raise CloudError(format_left(name, removed.left, known.hourly if known else None))
    return removed


def _require_removable(name: str, known: ClusterRecord | None, clients: Clients, is_forced: bool) -> None:
    everything = find_everything(clients)
    found = [each for each in everything if each.cluster == name]
    if known is None and not found:
        others = {*known_clusters(), *(each.cluster for each in everything)} - {name}
        raise UserError(
            f"there is no cluster {name!r}: none is written down here, and nothing in {clients.region} has its tags; "
            f"{suggest_name(name, others)}`echelon cloud list` shows all, --region looks elsewhere"
        )
    owners = [known.owner] if known else [each.owner for each in found]
    require_owner(name, owners, find_caller(clients), is_forced=is_forced)
    if known and not is_forced:
        _require_results_at_home(known)


def _require_results_at_home(cluster: ClusterRecord) -> None:
    """UserError if the cluster may have the only copy of a run's checkpoints."""
    name, runs = cluster.spec.name, Journal(cluster.spec.name).runs
    if runs and (cluster.spec.shared or time.time() < cluster.deadline):
        raise UserError(
            f"the checkpoints of {', '.join(runs)} have not come home, and would be lost with {name}; `echelon train "
            f"RECIPE --cluster {name}` completes a run and brings them, and --force removes them"
        )


def format_down(removed: Removed) -> str:
    cost = f"; it has cost about ${removed.cost:.2f}" if removed.cost is not None else ""
    return f"nothing is left of {removed.name}{cost}"


def list_clusters(region: str | None) -> list[Listed]:
    """All clusters: those with a journal here, and those found only by their tags."""
    journals = {name: Journal(name).require() for name in known_clusters()}
    account = account_of(find_caller(Clients(region or default_region())))
    regions = {cluster.spec.region for cluster in journals.values()} | {region or default_region()}
    found = {place: find_everything(Clients(place)) for place in sorted(regions)}
    now, listed = time.time(), list[Listed]()
    for name, cluster in journals.items():
        own = [each for each in found[cluster.spec.region] if each.cluster == name]
        listed.append(_list_known(cluster, own, now, account))
    for place, everything in found.items():
        here = {name for name, cluster in journals.items() if cluster.spec.region == place}
        strangers = {each.cluster for each in everything} - here
        listed += [
            _list_stranger(name, place, [each for each in everything if each.cluster == name], now)
            for name in sorted(strangers)
        ]
    return listed


def _state_of(cluster: ClusterRecord, found: list[Resource], machines: int, account: str) -> str:
    if account_of(cluster.owner) not in ("", account):
        return f"in account {account_of(cluster.owner)}, not asked"
    if machines:
        return "running" if machines == cluster.spec.count else f"{machines} of {cluster.spec.count} running"
    if not cluster.hosts:
        return "half made"
    has_files = any(each.kind == "file system" and each.state != "deleted" for each in found)
    return "ended, its files are kept" if has_files else "ended"


def _list_known(cluster: ClusterRecord, found: list[Resource], now: float, account: str) -> Listed:
    machines = [each for each in found if each.kind == "machine" and each.state in ("pending", "running")]
    return Listed(
        cluster.spec.name,
        cluster.spec.region,
        _state_of(cluster, found, len(machines), account),
        len(machines),
        (now - cluster.created) / 3600,
        cost_so_far(cluster, now),
        max(0.0, (cluster.deadline - now) / 3600),
        True,
        found,
    )


def _list_stranger(name: str, region: str, found: list[Resource], now: float) -> Listed:
    machines = [each for each in found if each.kind == "machine" and each.started]
    hours = max(((now - each.started) / 3600 for each in machines), default=None)
    try:
        cost = sum(
            (
                price("aws", each.machine_type, each.is_spot, region)
                + machine("aws", each.machine_type).credits_hourly
            )
            * (now - each.started)
            / 3600
            for each in machines
        )
    except UserError:
        cost = None
    state = "not written down here"
    return Listed(name, region, state, len(machines), hours, cost if machines else None, None, False, found)


def format_list(listed: list[Listed], width: int | None = None) -> str:
    """A table, and what to do about clusters without a journal here."""
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
        f"`echelon cloud down {each.name} --region {each.region}` removes {each.name}{_format_owners(each.found)}: "
        + ", ".join(f"{thing.kind} {thing.id}" for thing in each.found)
        for each in listed
        if not each.is_written_down
    ]
    return "\n".join([render_table(rows, width), *hints])


def _format_owners(found: list[Resource]) -> str:
    owners = sorted({each.owner for each in found} - {""})
    return f", made by {' and '.join(owners)}" if owners else ""


def _hours(hours: float | None) -> str:
    if hours is None:
        return ""
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"


def listed_json(listed: list[Listed]) -> list[dict[str, Any]]:
    return [asdict(each) for each in listed]


def ssh_command(name: str, number: int, port: int | None, command: list[str]) -> list[str]:
    """The ssh command for a host of a cluster; `port` of its loopback is forwarded to this machine's."""
    cluster = Journal(name).require()
    if number not in {host.number for host in cluster.hosts}:
        raise UserError(f"{name} has hosts 0 to {cluster.spec.count - 1}, not {number}")
    forward = ["-L", f"127.0.0.1:{port}:127.0.0.1:{port}"] if port else []
    return ["ssh", "-F", str(Journal(name).ssh_config), *forward, host_name(name, number), *command]


def default_region() -> str:
    """The region that the user's own configuration names."""
    return configured_region() or "us-east-1"
