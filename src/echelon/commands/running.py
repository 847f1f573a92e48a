"""`watch` and `attach`: a run that is under way, here or on its hosts, shown until it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from echelon.agent.result_archive import last_step
from echelon.cluster.host_containers import find_containers
from echelon.cluster.host_watch import HostWatch, SharedFiles
from echelon.cluster.result_transfer import fetch_results
from echelon.cluster.roster import Roster, open_sessions, read_roster
from echelon.commands.keyboard import reading_keys
from echelon.commands.logs import LogTails
from echelon.commands.run_screen import RunScreen
from echelon.commands.runs import summarise
from echelon.commands.stop import ask_to_stop
from echelon.commands.terminal_dashboard import Dashboard
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.monitor.run_state import read_state
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder

_POLL_S = 0.2


def watch(run: RunFolder, console: Console, *, may_stop: bool, with_logs: bool = False) -> dict[str, Any]:
    """Show a run until it is over; q or Ctrl-C leaves it alone or, if `may_stop`, Ctrl-C makes it save and stop."""
    roster = read_roster(run.require())
    num_hosts = len(roster.entries) if roster else 0
    log_every = load_recipe(run.recipe).train.log_every
    has_dashboard = console.is_terminal and not may_stop and not with_logs
    screen = RunScreen(
        run, num_hosts, log_every, console, shown=Dashboard(run, console) if has_dashboard else None
    )
    screen.show_start(run)
    screen.logs = LogTails(run) if with_logs else None
    stops, has_asked = StopRequests(), False
    is_left_alone = False
    try:
        with (
            signals_call(stops.ask),
            reading_keys() if has_dashboard else contextlib.nullcontext(lambda: "") as keys,
            _watching(roster, run, screen) as hosts,
        ):
            while hosts.is_training():
                screen.show_news()
                if "q" in keys().lower():
                    stops.ask()
                if stops.is_set and not may_stop:
                    is_left_alone = True
                    break
                if stops.is_set and not has_asked:
                    has_asked = True
                    ask_to_stop(run, now=False)
                time.sleep(_POLL_S)
            screen.show_news()
            if may_stop:
                hosts.fetch_result(console)
    finally:
        screen.close()
    summary = summarise(run)
    state = "training" if is_left_alone else summary.state
    return {"run": str(run.path), "state": state, "step": summary.step}


def watch_page(
    run: RunFolder, console: Console, place: tuple[str, int], hourly: float | None
) -> dict[str, Any]:
    """Show a run and serve its page, which stays when the run is over, until Ctrl-C."""
    from echelon.commands.web import open_page

    with open_page([run.require().path], *place, hourly) as addresses:
        console.print(f"the run's page: {' or '.join(addresses)}", highlight=False, soft_wrap=True)
        result = watch(run, console, may_stop=False)
        if result["state"] != "training":
            console.print("the run is over; Ctrl-C closes the page", highlight=False)
            wait_for_interrupt()
    return result


def wait_for_interrupt() -> None:
    """Return when this process is told to end."""
    told = threading.Event()
    with signals_call(told.set):
        while not told.wait(_POLL_S):
            pass


class _RunHere:
    """A run on this machine."""

    def __init__(self, run: RunFolder) -> None:
        self.is_training = run.is_locked

    def fetch_result(self, console: Console) -> None:
        """The result is here already."""


class _RunOnHosts:
    """A run on hosts, all of them watched."""

    def __init__(self, run: RunFolder, watches: Sequence[HostWatch], *, has_launcher: bool) -> None:
        self._run, self._watches, self._has_launcher = run, watches, has_launcher

    def is_training(self) -> bool:
        return any(watch.is_under_way for watch in self._watches)

    def fetch_result(self, console: Console) -> None:
        """Fetch the result of a run that has finished on hosts with folders of their own, as its launcher would."""
        have_it = [watch.session for watch in self._watches if watch.outcome == "finished"]
        is_here = any(watch.session.sees_our_folder for watch in self._watches) or self._has_result()
        if have_it and not is_here and not self._has_launcher:
            console.print("bringing the result here ...", highlight=False)
            fetch_results(have_it, self._run)

    def _has_result(self) -> bool:
        """Whether the result came here before: the last checkpoint, and after it the scores."""
        return last_step(self._run) >= read_state(self._run).step and any(self._run.scores.iterdir())


@contextlib.contextmanager
def _watching(roster: Roster | None, run: RunFolder, screen: RunScreen) -> Iterator[_RunHere | _RunOnHosts]:
    """Follow a run. If its launcher has gone, what hosts write comes into our run folder meanwhile."""
    if roster is None:
        yield _RunHere(run)
        return
    has_launcher = run.is_locked()
    with open_sessions(roster) as sessions, contextlib.ExitStack() as stack:
        if not has_launcher:
            stack.enter_context(run.lock(with_others=True))
        shared = SharedFiles(run, sessions) if roster.is_shared else None
        watches = [
            stack.enter_context(
                contextlib.closing(
                    HostWatch(session, None, run, screen.tell, mirrors=not has_launcher, shared=shared)
                )
            )
            for session in find_containers(sessions, run.path, roster.container)
        ]
        yield _RunOnHosts(run, watches, has_launcher=has_launcher)
