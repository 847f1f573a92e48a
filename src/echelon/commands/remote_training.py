"""`train --hosts`: check the hosts, install what is missing, start their agents and watch them."""

from __future__ import annotations

import shlex
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from echelon.agent.execution import placement_of
from echelon.agent.generation import Generation
from echelon.agent.outcome import RunOutcome
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.cloud.journal import Journal
from echelon.cluster.host_containers import (
    find_containers,
    host_containers,
    render_host_container,
    start_container,
)
from echelon.cluster.host_session import (
    HostSession,
    Size,
    choose_size,
    is_folder_shared,
    render_specs,
    start_agents,
    warn_of_two_parts,
)
from echelon.cluster.host_watch import HostWatch, SharedFiles, stop_host, watch_hosts
from echelon.cluster.result_transfer import fetch_results, have_no_checkpoint
from echelon.cluster.roster import write_roster
from echelon.cluster.status import end_leftovers
from echelon.commands.cluster_options import ClusterOptions
from echelon.commands.readiness import format_hosts
from echelon.commands.rented_hosts import Rented
from echelon.commands.run_screen import RunScreen
from echelon.commands.training import Begun, TrainOptions, begin, say_what_begins, summarise
from echelon.console import tell
from echelon.data.batch_plan import AnyPrepared
from echelon.errors import HostsError
from echelon.extras import require_extra
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.container import python_with, render_transfer, send_image
from echelon.launch.findings import MeasuredLink, Needs, PreparedData
from echelon.launch.install import ENVIRONMENT, InstallOptions, install_hosts
from echelon.launch.placement import render_worker
from echelon.launch.ray_routes import with_ray_route
from echelon.launch.routes import Route
from echelon.launch.session import INSTALLED_PYTHON
from echelon.launch.ssh import Remote, on_all, raise_problems
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.launch.sync import sync_hosts
from echelon.monitor.bar import Show, working
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder

_FOUND_LATER = "(found when the host is ready)"


class HostDeclaration(Protocol):
    """What a task says about the workers on other hosts."""

    def host_environment(self, recipe: Recipe, data: Path) -> dict[str, str]:
        """What they need in their environment; `data` is the folder of the prepared data."""
        ...


class RunHosts:
    """The hosts of one run: checked, installed on and described to their agents."""

    def __init__(
        self,
        options: ClusterOptions,
        run: RunFolder,
        recipe: Recipe,
        prepared: AnyPrepared,
        remotes: Mapping[str, Remote],
    ) -> None:
        self._options = options
        self._run = run
        self._recipe = recipe
        self._prepared = prepared
        self._remotes = remotes
        self.link: MeasuredLink | None = None
        """How fast they exchange together, once they are ready."""
        self._size(is_shared=True)  # refuses impossible sizes before anything is done
        if options.tls:
            require_extra("cryptography", "tls")

    def get_ready(self, console: Console) -> list[HostSession]:
        """Install what is wanted on the hosts, check them all, and show the findings; HostsError if one is not
        ready, with every problem of every host."""
        self._put_programs(console)
        with working(console, "checking the hosts"):
            reports = self._check()
        without_data = [r for r in reports if r.facts is not None and r.facts.data_problem]
        if self._options.sync and without_data:
            self._send_data(without_data, console)
            reports = self._check()
        _show(reports, console)
        if not all(report.is_fit for report in reports):
            raise HostsError("not all hosts are ready: see the lines marked with ✗")
        self.link = reports[0].link
        return [self._session(number, report) for number, report in enumerate(reports)]

    def look(self, console: Console) -> list[HostSession]:
        """Check the hosts and show the findings; nothing is installed, and hosts need not be ready."""
        with working(console, "checking the hosts"):
            reports = [self._without_remedied(report) for report in self._check()]
        _show(reports, console)
        return [self._session(number, report) for number, report in enumerate(reports)]

    def _without_remedied(self, report: HostReport) -> HostReport:
        """The report without what --install and --sync will fix."""
        given = {"--install": self._options.install, "--sync": self._options.sync}
        left = tuple(each for each in report.findings if not given.get(each.remedy.split()[0]))
        return replace(report, findings=left)

    def _put_programs(self, console: Console) -> None:
        remotes, image = list(self._remotes.values()), self._options.container
        if self._options.install:
            with working(console, "installing Echelon on the hosts") as show:
                raise_problems(install_hosts(remotes, InstallOptions(), tell=partial(_show_stage, show)))
        if image:
            raise_problems(on_all(remotes, lambda remote: send_image(remote, image)))

    def _check(self) -> list[HostReport]:
        options = self._options
        needs = render_needs(options, self._run, self._prepared)
        reports = check_hosts(options.hosts, self._remotes, needs)
        if options.ray is None or options.interface:
            return reports
        return [with_ray_route(report, options.ray) for report in reports]

    def _send_data(self, reports: Sequence[HostReport], console: Console) -> None:
        names = [report.host.name for report in reports]
        folder, image = self._prepared.folder.resolve(), self._options.container
        pythons: dict[str, Sequence[str]] = {report.host.name: report.python for report in reports}
        if image:  # a check has only folders that are there
            pythons = {name: python_with(self._remotes[name], image, folder.parent) for name in names}
        remotes = [self._remotes[name] for name in names]
        sent: dict[str, tuple[int, int]] = {}

        with working(console, f"copying the prepared data to {', '.join(names)}") as show:

            def count(host: str, done: int, total: int) -> None:
                sent[host] = (done, total)
                show(
                    sum(done for done, _ in sent.values()) / max(1, sum(total for _, total in sent.values()))
                )

            raise_problems(sync_hosts(remotes, folder, folder, pythons=pythons, progress=count))

    def _session(self, number: int, report: HostReport) -> HostSession:
        facts, name = report.facts, report.host.name
        route = report.route or Route(_FOUND_LATER, _FOUND_LATER)
        workers = report.host.workers or (len(facts.machine.gpus) if facts else 0)
        cores = facts.machine.cores if facts else 1
        workers = workers or parse_workers(self._recipe.train.workers).at_start(cores)
        spec = HostSpec(name, route.address, route.interface, workers)
        python = report.python or (self._options.python or INSTALLED_PYTHON,)
        return HostSession(number, self._remotes[name], python, spec, bool(facts and facts.shares_run_folder))

    def specs(self, sessions: Sequence[HostSession], *, is_shared: bool) -> list[AgentSpec]:
        """The spec of each host's agent."""
        task: HostDeclaration = find_task(self._recipe.task)
        environment = task.host_environment(self._recipe, self._prepared.folder.resolve())
        specs = render_specs(
            sessions,
            self._run,
            self._recipe,
            self._size(is_shared=is_shared),
            port=self._options.port,
            is_shared=is_shared,
            is_encrypted=self._options.tls,
        )
        return [replace(spec, environment={**spec.environment, **environment}) for spec in specs]

    def warn_of_two_parts(self) -> str | None:
        """A warning if hosts with their own folders could split into two runs; None otherwise."""
        return warn_of_two_parts(self._size(is_shared=False), len(self._options.hosts))

    def _size(self, *, is_shared: bool) -> Size:
        return choose_size(self._options.num_hosts, len(self._options.hosts), is_shared=is_shared)


def render_needs(options: ClusterOptions, run: RunFolder, prepared: AnyPrepared) -> Needs:
    """What the run requires of its hosts."""
    return Needs(
        run_folder=run.path,
        data=PreparedData(prepared.folder.resolve(), prepared.key),
        python=options.python,
        interface=options.interface,
        measures_link=options.ray is None or not options.ray.is_on_loopback(),
        container=options.container,
    )


@contextmanager
def open_hosts(
    options: ClusterOptions, run: RunFolder, recipe: Recipe, prepared: AnyPrepared
) -> Iterator[RunHosts]:
    """A connection to each host, closed at the end."""
    with ExitStack() as stack:
        connect = options.ray.remote if options.ray else partial(Remote, config=options.ssh_config)
        remotes = {host.name: stack.enter_context(connect(host.name)) for host in options.hosts}
        yield RunHosts(options, run, recipe, prepared, remotes)


def train_over_ssh(options: TrainOptions, console: Console) -> dict[str, Any]:
    """Like `train`, on the hosts of `options.cluster`."""
    assert options.cluster is not None
    with begin(options, console) as begun:
        say_what_begins(begun, parse_workers(begun.recipe.train.workers), console)
    # Not locked any more: the agents of the hosts lock the run folder themselves.
    ended = train_on_hosts(options.cluster, begun, console)
    return summarise(begun.run, begun.recipe, ended)


def train_on_hosts(
    options: ClusterOptions, begun: Begun, console: Console, stops: StopRequests | None = None
) -> RunOutcome:
    """Train a run, whose folder is written here, on its hosts; return when it has ended. `stops` as in
    `run_on_this_machine`."""
    run, recipe, prepared = begun.run, begun.recipe, begun.prepared
    with (
        open_hosts(options, run, recipe, prepared) as hosts,
        _kept(options, run, prepared, console) as is_ready,
        ExitStack() as stack,
    ):
        sessions = hosts.get_ready(console)
        for host in end_leftovers(run):
            console.print(f"{host}: ended an agent that had missed the end of this run", highlight=False)
        open_again = None
        if options.container:
            folder = prepared.folder.resolve()
            sessions = stack.enter_context(host_containers(options.container, sessions, run.path, folder))
            open_again = partial(start_container, options.container, run=run.path, data=folder)
        is_shared = is_folder_shared(sessions, run)
        write_roster(
            run,
            sessions,
            socket.gethostname(),
            options.ssh_config,
            is_shared=is_shared,
            container=options.container,
            ray=options.ray.place if options.ray else None,
        )
        _note_link(run, hosts.link)
        specs = hosts.specs(sessions, is_shared=is_shared)
        if not is_shared and (warning := hosts.warn_of_two_parts()):
            tell(console, warning)
        stops = stops or StopRequests()
        with (
            closing(RunScreen(run, len(sessions), recipe.train.log_every, console)) as screen,
            run.lock(with_others=True),
            # Before the first agent starts, as all must hear of a signal. A terminal that is closed ends the
            # launcher, and not the run: the agents do without.
            signals_call(stops.ask, (signal.SIGINT, signal.SIGTERM)),
        ):
            if options.rented and not recipe.checkpoint.mirror:
                Journal(options.rented).note_run(run.path, is_home=False)
            start_agents(sessions, specs)
            outcome, witnesses = _watch(
                sessions, specs, run, screen, stops, is_ready=is_ready, open_again=open_again
            )
        if outcome.is_finished and not any(session.sees_our_folder for session in sessions):
            fetch_results(find_containers(witnesses, run.path, options.container), run)
        if options.rented and (
            outcome.is_finished
            or have_no_checkpoint(find_containers(sessions, run.path, options.container), run)
        ):
            Journal(options.rented).note_run(run.path, is_home=True)
    return outcome


def _note_link(run: RunFolder, link: MeasuredLink | None) -> None:
    """Record how fast the hosts exchange, for `report`."""
    if link is not None:
        with closing(RecordWriter(run.launcher_records)) as records:
            records.write("link", bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)


@contextmanager
def _kept(
    options: ClusterOptions, run: RunFolder, prepared: AnyPrepared, console: Console
) -> Iterator[Callable[[str], bool]]:
    """Rented hosts get the run's folders, and are replaced if they are reclaimed; other hosts are left alone.

    Yields a function that says whether a host is set up.
    """
    if options.rented is None:
        yield lambda host: True
        return
    records = RecordWriter(run.launcher_records)

    def note(message: str) -> None:
        records.write("event", message=message)
        tell(console, message)

    rented = Rented(options.rented, run.path, prepared.folder.resolve(), note)
    rented.make_folders()
    with closing(records), rented.kept():
        yield rented.is_ready


def describe_launch(
    options: ClusterOptions, run: RunFolder, recipe: Recipe, prepared: AnyPrepared, console: Console
) -> dict[str, list[str]]:
    """What would be run on every host, by name. Hosts are probed, and nothing is started or changed; only an empty
    run folder is made if they are probed from within a container."""
    with open_hosts(options, run, recipe, prepared) as hosts:
        sessions = hosts.look(console)
        specs = hosts.specs(sessions, is_shared=all(session.sees_our_folder for session in sessions))
        return {
            session.name: _commands(session, specs[session.number], options, prepared) for session in sessions
        }


def _commands(
    session: HostSession, spec: AgentSpec, options: ClusterOptions, prepared: AnyPrepared
) -> list[str]:
    """The commands for one host: what is installed, the agent, and the workers that it starts."""
    generation = Generation(1, 0, tuple(range(len(spec.hosts))), store_port=1)
    place = replace(placement_of(spec, generation), port=0)
    run, folder = RunFolder(Path(spec.run)), prepared.folder.resolve()
    puts = [f"# --install: {ENVIRONMENT}, with what is installed here"] if options.install else []
    puts += [f"# --sync: {folder}, if it is missing"] if options.sync else []
    if options.container:
        puts.append(
            f"# here, if the image is missing there: {render_transfer(options.container, session.remote)}"
        )
        puts.append(shlex.join(render_host_container(options.container, session, run.path, folder)))
    agent = [*session.python, "-m", "echelon.agent", "start"]
    workers = []
    for local_rank in range(session.spec.workers):
        worker = render_worker(run, place, local_rank, session.spec.workers)
        settings = {**worker.environment, "MASTER_PORT": "chosen when it starts"}
        words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        workers.append(" ".join([*words, shlex.join([*session.python, *worker.command[1:]])]))
    return [*puts, f"{shlex.join(agent)} < orders", *workers]


def _watch(
    sessions: Sequence[HostSession],
    specs: Sequence[AgentSpec],
    run: RunFolder,
    screen: RunScreen,
    stops: StopRequests,
    *,
    is_ready: Callable[[str], bool],
    open_again: Callable[[HostSession], object] | None,
) -> tuple[RunOutcome, list[HostSession]]:
    """Show the run until it ends; also return the hosts that took part to the end, and so have its result."""
    records = RecordWriter(run.launcher_records)

    def tell(message: str) -> None:
        records.write("event", message=message)
        screen.tell(message)

    def show_news() -> None:
        if message := stops.news():
            screen.tell(message)
        screen.show_news()

    shared = SharedFiles(run, sessions) if specs[0].shares_folder else None
    watches = [
        HostWatch(
            session,
            specs[session.number],
            run,
            tell,
            is_ready=partial(is_ready, session.name),
            shared=shared,
            start_container=partial(open_again, session) if open_again else None,
        )
        for session in sessions
    ]
    try:
        outcome = watch_hosts(watches, run.path, stops, show_news)
    finally:
        for watch in watches:
            watch.close()
        records.close()
    for watch in watches:  # now that no agent is restarted
        if watch.is_under_way:  # it came back too late and would wait for the others
            stop_host(watch.session, run.path, now=True)
    witnesses = [watch.session for watch in watches if watch.outcome == outcome]
    return RunOutcome(outcome, restarts=max(0, screen.generations - 1)), witnesses


def _show_stage(show: Show, host: str, line: str) -> None:
    """Show the stages among the lines that an installation prints; their share of the time is unknown."""
    if line.endswith(" ...") and not line.startswith(" "):
        show(None, f"{host}: {line.removesuffix(' ...')}")


def _show(reports: Sequence[HostReport], console: Console) -> None:
    console.print(format_hosts(reports), markup=False, highlight=False, soft_wrap=True)
