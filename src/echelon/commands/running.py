"""`status`, `watch`, `attach` and `stop`: a run that is going on, here or on its hosts; and `train --detach`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.agent.inquiry import HostAnswer
from echelon.agent.packing import last_step
from echelon.agent.service import find_agent
from echelon.agent.service import stop as stop_agent
from echelon.cluster.boxes import find_boxes
from echelon.cluster.fetching import fetch_results
from echelon.cluster.roster import Roster, open_seats, read_roster
from echelon.cluster.starting import Seat
from echelon.cluster.status import ask_hosts, judge_run
from echelon.cluster.watching import HostWatch, SharedFiles
from echelon.commands.keyboard import reading_keys
from echelon.commands.logs import LogTails
from echelon.commands.run_screen import RunScreen
from echelon.commands.runs import RunSummary, summarise
from echelon.commands.terminal_dashboard import Dashboard
from echelon.errors import RemoteError, RunError, TrainingError
from echelon.explain.history import RecordStore, read_history
from echelon.launch.local import StopRequests, signals_call
from echelon.launch.ssh import side_by_side
from echelon.monitor.records import read_records
from echelon.monitor.run_state import read_state
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, open_no_link

_POLL_S = 0.2
_STOP_S = 320.0
"""A little more than launch/local.py gives workers to save and leave."""
_KILL_S = 15.0
_START_S = 600.0
_LOCK_BYTES = 1000


@dataclass(frozen=True)
class HostState:
    """One host of a run that is going on."""

    host: str
    workers: int
    state: str
    """running, waiting (its agent has no workers), stopped, or why it cannot be asked."""

    @property
    def is_reached(self) -> bool:
        return self.state in ("running", "waiting", "stopped")


@dataclass(frozen=True)
class RunStatus:
    """A run in a few lines."""

    run: RunSummary
    generation: int | None
    seconds_per_step: float | None
    """Of the run, also if workers take whole steps side by side."""
    seconds_left: float | None
    hosts: list[HostState]
    events: list[str]
    """The last things that its launcher and its agents have told."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "run": self.run.to_json()}


def get_status(run: RunFolder) -> RunStatus:
    """How a run stands; its hosts are asked."""
    summary, hosts = summarise_with_hosts(run.require())
    store = RecordStore()
    history = read_history(run, store)
    left = (
        max(0, summary.steps - summary.step) * history.wall_pace if summary.steps and history.steps else None
    )
    told = _told(run, len(hosts))
    generations = [record["generation"] for record in told if isinstance(record.get("generation"), int)]
    return RunStatus(
        run=summary,
        generation=generations[-1] if generations else None,
        seconds_per_step=history.pace or None,
        seconds_left=left if summary.state == "training" else None,
        hosts=hosts,
        events=[str(record.get("message", "")) for record in (*told[-5:], *store.notes())],
    )


def summarise_with_hosts(run: RunFolder) -> tuple[RunSummary, list[HostState]]:
    """A run in one line, and its hosts, which are asked: its launcher may have gone, and they may know more."""
    summary, roster = summarise(run), read_roster(run)
    if roster is None:
        return summary, []
    with open_seats(roster) as seats:
        answers = ask_hosts(find_boxes(seats, run.path, roster.container), run)
        state = judge_run(run, answers)
        hosts = [_host_state(seat, answer) for seat, answer in zip(seats, answers, strict=True)]
    newer = replace(summary, state=state.name, step=state.step, steps=state.steps, last_change=state.as_of)
    return newer, hosts


def _host_state(seat: Seat, answer: HostAnswer | RemoteError) -> HostState:
    if isinstance(answer, RemoteError):
        state = answer.message
    elif not answer.is_running:
        state = "stopped"
    else:
        state = "running" if answer.trains else "waiting"
    return HostState(seat.name, seat.spec.workers, state)


def _told(run: RunFolder, num_hosts: int) -> list[dict[str, Any]]:
    """Events of the launcher and of all agents, by time."""
    files = [run.launcher_records, *(run.agent_records(host) for host in range(num_hosts))]
    records = [record for file in files for record in read_records(file) if record["kind"] == "event"]
    return sorted(records, key=lambda record: float(record.get("time") or 0))


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
            while hosts.is_going_on():
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
                hosts.bring_home(console)
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


class _Here:
    """A run on this machine."""

    def __init__(self, run: RunFolder) -> None:
        self.is_going_on = run.is_locked

    def bring_home(self, console: Console) -> None:
        """It is at home."""


class _Hosts:
    """A run on hosts, each of which is watched."""

    def __init__(self, run: RunFolder, watches: Sequence[HostWatch], *, has_launcher: bool) -> None:
        self._run, self._watches, self._has_launcher = run, watches, has_launcher

    def is_going_on(self) -> bool:
        return any(watch.outcome is None and watch.is_reached for watch in self._watches)

    def bring_home(self, console: Console) -> None:
        """Fetch the result of a run that has finished on hosts with folders of their own, as its launcher would."""
        have_it = [watch.seat for watch in self._watches if watch.outcome == "finished"]
        is_here = any(watch.seat.sees_our_folder for watch in self._watches) or self._is_home()
        if have_it and not is_here and not self._has_launcher:
            console.print("bringing the result here ...", highlight=False)
            fetch_results(have_it, self._run)

    def _is_home(self) -> bool:
        """Whether the result came here before: the last checkpoint, and after it the scores."""
        return last_step(self._run) >= read_state(self._run).step and any(self._run.scores.iterdir())


@contextlib.contextmanager
def _watching(roster: Roster | None, run: RunFolder, screen: RunScreen) -> Iterator[_Here | _Hosts]:
    """Follow a run. If its launcher has gone, what hosts write comes into our run folder meanwhile."""
    if roster is None:
        yield _Here(run)
        return
    has_launcher = run.is_locked()
    with open_seats(roster) as seats, contextlib.ExitStack() as stack:
        if not has_launcher:
            stack.enter_context(run.lock(with_others=True))
        shared = SharedFiles(run, seats) if roster.is_shared else None
        watches = [
            stack.enter_context(
                contextlib.closing(
                    HostWatch(seat, None, run, screen.tell, mirrors=not has_launcher, shared=shared)
                )
            )
            for seat in find_boxes(seats, run.path, roster.container)
        ]
        yield _Hosts(run, watches, has_launcher=has_launcher)


def stop(run: RunFolder, *, now: bool) -> dict[str, Any]:
    """Have a run save and leave, or end at once, wherever it runs; returns when it has."""
    was_running = ask_to_stop(run.require(), now=now)
    deadline = time.monotonic() + (_KILL_S if now else _STOP_S)
    while was_running and _is_running(run):
        if time.monotonic() > deadline:
            raise TrainingError(f"{run.path}: it has not stopped yet; --now ends it at once")
        time.sleep(_POLL_S)
    summary, hosts = summarise_with_hosts(run)
    return {
        "run": str(run.path),
        "was_running": was_running,
        "state": summary.state,
        "step": summary.step,
        "unreachable": [host.host for host in hosts if not host.is_reached],
    }


def ask_to_stop(run: RunFolder, *, now: bool) -> bool:
    """Tell whoever trains a run to stop: the agents of its hosts, or the process here. Whether anybody was told."""
    roster = read_roster(run)
    if roster is not None:
        return _stop_hosts(roster, run, now)
    pid = holder(run)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        if now:
            time.sleep(1.1)  # a second signal within a second counts as the first
            os.kill(pid, signal.SIGTERM)
    return True


def _stop_hosts(roster: Roster, run: RunFolder, now: bool) -> bool:
    here = [host for host in range(len(roster.entries)) if find_agent(run, host) is not None]
    if here and not now:  # this machine is one of the hosts: its agent tells the others
        return bool(stop_agent(run, here[0], now=False)["was_running"])

    def ask(seat: Seat) -> bool:
        try:
            words = ["stop", str(run.path), str(seat.number), *(["--now"] if now else [])]
            return bool(seat.run_agent(*words, timeout_s=20)["was_running"])
        except RemoteError:
            return False  # the others tell it, or it ends when it finds itself alone

    with open_seats(roster) as seats:
        return any(side_by_side(seats, ask))


def _is_running(run: RunFolder) -> bool:
    """Whether a host that can be reached is at work, or a launcher that has not heard of the end yet.

    A host that cannot be reached may hold the lock of a folder that it shares; it is not waited for.
    """
    roster = read_roster(run)
    if roster is None:
        return run.is_locked()
    with open_seats(roster) as seats:
        answers = ask_hosts(seats, run)
    told = [answer for answer in answers if isinstance(answer, HostAnswer)]
    is_on_hosts = any(answer.is_running for answer in told)
    return is_on_hosts or (run.is_locked() and len(told) == len(answers))


def holder(run: RunFolder) -> int | None:
    """The process that trains the run on this machine; RunError if that is another machine."""
    if not run.is_locked():
        return None
    with open(run.lock_file, "rb", opener=open_no_link) as file:
        text, lock = file.read(_LOCK_BYTES).decode(errors="replace"), os.fstat(file.fileno())
    match = re.fullmatch(r"process ([1-9]\d{0,8}) on (.*)\n?", text)
    if match is None:
        return None
    if match[2].strip() != socket.gethostname():
        raise RunError(f"{run.path}: is being trained on {match[2].strip()}; stop it there")
    if not _may_hold(int(match[1]), lock):
        raise RunError(
            f"{run.lock_file}: names process {match[1]}, which is not the one that holds the lock; `fuser "
            f"{run.lock_file}` says which does"
        )
    return int(match[1])


def _may_hold(pid: int, lock: os.stat_result) -> bool:
    """Whether a process has the lock open and belongs to the user whose file it is; or has ended, while its workers
    still hold it. Whoever owns the folder could name any process in the lock."""
    process = Path("/proc", str(pid))
    try:
        if process.stat().st_uid != lock.st_uid:
            return False
        return any(_is_same(descriptor, lock) for descriptor in (process / "fd").iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_same(descriptor: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), file)
    except OSError:
        return False


def detach(command: Sequence[str], run: RunFolder, console: Console) -> dict[str, Any]:
    """Run a command in the background, and return when the run has begun to train; RunError if it ends before."""
    run.create()
    begun = len(_starts(run))
    log = run.launcher_log
    with open(log, "ab", opener=open_no_link) as out:
        position = out.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "echelon", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Whoever called this may live longer than it.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    deadline = time.monotonic() + _START_S
    while process.poll() is None and len(_starts(run)) <= begun and time.monotonic() < deadline:
        position = _show_log(log, position, console)
        time.sleep(_POLL_S)
    _show_log(log, position, console)
    if process.poll() not in (None, 0):
        raise RunError(f"{run.path}: the run did not begin; see above, or {log}")
    return {"run": str(run.path), "process": process.pid, "log": str(log)}


def _starts(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]


def _show_log(log: Path, position: int, console: Console) -> int:
    with open(log, "rb") as file:
        file.seek(position)
        text = file.read().decode(errors="replace")
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        return file.tell()
