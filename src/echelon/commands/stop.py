"""`stop`: have a run's workers save and leave, here or on its hosts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from echelon.agent.inquiry import HostAnswer
from echelon.agent.service import find_agent
from echelon.agent.service import stop as stop_agent
from echelon.cluster.host_session import HostSession
from echelon.cluster.roster import Roster, open_sessions, read_roster
from echelon.cluster.status import ask_hosts
from echelon.commands.status import summarise_with_hosts
from echelon.errors import RemoteError, RunError, TrainingError
from echelon.launch.ssh import side_by_side
from echelon.runfolder import RunFolder, open_no_link

_POLL_S = 0.2
_STOP_S = 320.0
"""A little more than launch/local.py gives workers to save and leave."""
_KILL_S = 15.0
_LOCK_BYTES = 1000


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
    """Tell a run to stop: the agents of its hosts, or the process here. True if any was told."""
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

    def ask(session: HostSession) -> bool:
        try:
            words = ["stop", str(run.path), str(session.number), *(["--now"] if now else [])]
            return bool(session.run_agent(*words, timeout_s=20)["was_running"])
        except RemoteError:
            return False  # the others tell it, or it ends when it finds itself alone

    with open_sessions(roster) as sessions:
        return any(side_by_side(sessions, ask))


def _is_running(run: RunFolder) -> bool:
    """Whether a host that can be reached is at work, or a launcher that has not heard of the end yet.

    A host that cannot be reached may hold the lock of a folder that it shares; it is not waited for.
    """
    roster = read_roster(run)
    if roster is None:
        return run.is_locked()
    with open_sessions(roster) as sessions:
        answers = ask_hosts(sessions, run)
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
    still hold it. The folder's owner could write any process into the lock."""
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
