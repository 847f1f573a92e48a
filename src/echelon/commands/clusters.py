"""`train --hosts`: check the hosts, put there what is missing, start their agents and watch them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from echelon.agent.spec import AgentSpec, HostSpec
from echelon.cluster.fetching import fetch_results
from echelon.cluster.roster import write_roster
from echelon.cluster.starting import (
    Seat,
    choose_size,
    is_folder_shared,
    render_specs,
    start_agents,
)
from echelon.cluster.watching import HostWatch, watch_hosts
from echelon.commands.following import RunScreen
from echelon.data.prepared import Prepared
from echelon.errors import HostsError
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.findings import Needs, PreparedData
from echelon.launch.hosts import Host
from echelon.launch.local import StopRequests, signals_call
from echelon.launch.ssh import Remote
from echelon.launch.supervise import Supervised
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder


@dataclass(frozen=True)
class ClusterOptions:
    """Which hosts, and how to get at them."""

    hosts: Sequence[Host]
    num_hosts: str | None = None
    ssh_config: Path | None = None
    python: str | None = None
    interface: str | None = None
    port: int | None = None


@contextmanager
def open_remotes(options: ClusterOptions) -> Iterator[dict[str, Remote]]:
    """A connection to each host, by name."""
    with ExitStack() as stack:
        yield {
            host.name: stack.enter_context(Remote(host.name, options.ssh_config)) for host in options.hosts
        }


def train_on_hosts(
    options: ClusterOptions, run: RunFolder, recipe: Recipe, prepared: Prepared, console: Console
) -> Supervised:
    """Train a run whose folder is written on the hosts; returns when it is over."""
    size = choose_size(options.num_hosts, len(options.hosts))
    with open_remotes(options) as remotes:
        console.print("checking the hosts ...", highlight=False)
        seats = find_seats(options, remotes, run, recipe, prepared)
        is_shared = is_folder_shared(seats, run)
        write_roster(run, seats, socket.gethostname(), options.ssh_config)
        specs = render_specs(seats, run, recipe, size, port=options.port, is_shared=is_shared)
        with run.lock(with_others=True):
            start_agents(seats, specs)
            outcome, restarts = _watch(seats, specs, run, recipe, console)
        if outcome == "finished" and not any(seat.sees_our_folder for seat in seats):
            fetch_results(seats, run)
    return Supervised(outcome == "finished", restarts)


def find_seats(
    options: ClusterOptions,
    remotes: dict[str, Remote],
    run: RunFolder,
    recipe: Recipe,
    prepared: Prepared,
) -> list[Seat]:
    """Check all hosts; HostsError with every problem of every host."""
    needs = Needs(
        run_folder=run.path,
        data=PreparedData(prepared.folder.resolve(), prepared.key),
        python=options.python,
        interface=options.interface,
    )
    reports = check_hosts(options.hosts, remotes, needs)
    problems = [
        f"{report.host.name}: {finding.what}; {finding.remedy}"
        for report in reports
        for finding in report.findings
        if finding.is_fatal
    ]
    if problems:
        raise HostsError("not all hosts are ready:" + "".join(f"\n  {problem}" for problem in problems))
    return [_seat(number, report, remotes[report.host.name], recipe) for number, report in enumerate(reports)]


def _seat(number: int, report: HostReport, remote: Remote, recipe: Recipe) -> Seat:
    facts, route = report.facts, report.route
    assert facts is not None, "a host without problems has told about itself"
    assert route is not None
    machine = facts.machine
    workers = report.host.workers or len(machine.gpus)
    workers = workers or parse_workers(recipe.train.workers).at_start(machine.cores)
    spec = HostSpec(report.host.name, route.address, route.interface, workers)
    return Seat(number, remote, report.python, spec, bool(facts.shares_run_folder))


def _watch(
    seats: Sequence[Seat], specs: Sequence[AgentSpec], run: RunFolder, recipe: Recipe, console: Console
) -> tuple[str, int]:
    """Show the run until it is over: how it ended, and how often it was restarted."""
    screen, stops = RunScreen(run, len(seats), recipe.train.log_every, console), StopRequests()
    records = RecordWriter(run.launcher_records)

    def tell(message: str) -> None:
        records.write("event", message=message)
        screen.tell(message)

    watches = [HostWatch(seat, specs[seat.number], run, tell) for seat in seats]
    try:
        with signals_call(stops.ask):
            outcome = watch_hosts(watches, run.path, stops, screen.show_news)
    finally:
        for watch in watches:
            watch.close()
        screen.close()
        records.close()
    return outcome, max(0, screen.generations - 1)
