"""Starting an agent in the background, and stopping it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import re
import resource
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from echelon.agent.actions import RecordEvent
from echelon.agent.agent import Agent
from echelon.agent.execution import HostExecutor
from echelon.agent.firewall import guard
from echelon.agent.hub_network import HubNetwork
from echelon.agent.outcome import RunOutcome, write_outcome
from echelon.agent.spec import AgentSpec, parse_spec
from echelon.errors import EchelonError, RunError
from echelon.launch.local import listen
from echelon.launch.ray_actor import LIFELINE_VARIABLE
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.launch.trust import trust
from echelon.monitor.records import RecordWriter
from echelon.runfolder import (
    LOOK_S,
    RunFolder,
    open_no_link,
    parse_json,
    take_lock,
    to_json,
    write_atomically,
)

_COME_S = 300.0
_POLL_S = 0.5


def start(text: bytes) -> dict[str, Any]:
    """Start the agent that `text` specifies; returns when it listens, or raises why it cannot."""
    try:
        spec = parse_spec(text)
    except ValueError as error:
        raise RunError(f"the agent's orders cannot be read: {error}") from None
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with open(writing, "w") as starter:
            _become_agent(spec, starter)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = parse_json(pipe.read() or b'{"error": "the agent died while it was starting", "status": 1}')
    if "error" in answer:
        raise (RunError if answer["status"] == RunError.exit_status else EchelonError)(answer["error"])
    return dict(answer)


def _become_agent(spec: AgentSpec, starter: IO[str]) -> NoReturn:
    """Leave the SSH session behind, get ready, say so, and look after the run; never returns."""
    status = 1
    try:
        os.setsid()
        _end_with_lifeline(os.environ.pop(LIFELINE_VARIABLE, None))
        _allow_many_files()
        with _prepare(spec) as (run, lock, listener):
            _redirect_output(run.agent_log(spec.host))
            os.environ.update(spec.environment)
            records = RecordWriter(run.agent_records(spec.host))
            _answer(starter, {"pid": os.getpid(), "host": socket.gethostname()})
            stops = StopRequests()
            with (
                guard(spec, lambda problem: records.write("firewall", message=problem)),
                signals_call(stops.ask, (signal.SIGTERM, signal.SIGINT)),
            ):
                ended = asyncio.run(_look_after(spec, listener, records, stops, lock))
            records.close()
            status = 0 if ended.outcome == "finished" else 1
    except BaseException as error:
        if starter.closed:
            sys.excepthook(*sys.exc_info())
        elif isinstance(error, EchelonError):
            _answer(starter, {"error": str(error), "status": error.exit_status})
        else:
            _answer(starter, {"error": f"{type(error).__name__}: {error}", "status": 1})
    finally:
        os._exit(status)


def _end_with_lifeline(descriptor: str | None) -> None:
    """End at once, with all workers, when the pipe that Ray's actor holds open has ended; over SSH there is none."""
    if descriptor is None:
        return
    lifeline = int(descriptor)

    def end_with_it() -> None:
        os.read(lifeline, 1)
        for worker in workers_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker, signal.SIGKILL)
        os._exit(1)

    os.set_inheritable(lifeline, False)
    threading.Thread(target=end_with_it, name="lifeline", daemon=True).start()


def _allow_many_files() -> None:
    """A leader has two connections for each host, and the default limit is 1,024 open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _look_after(
    spec: AgentSpec,
    listener: socket.socket,
    records: RecordWriter,
    stops: StopRequests,
    lock: int,
) -> RunOutcome:
    def tell(news: RecordEvent) -> None:
        records.write(news.kind, message=news.message, **news.values)

    def note_end(ended: RunOutcome) -> None:
        write_outcome(records, ended, spec.me.name)

    records.write("start", host=spec.me.name)
    executor = HostExecutor(spec, RunFolder(Path(spec.run)), lock, tell)
    return await Agent(spec, executor, HubNetwork(spec, listener), stops, note_end).run()


def _answer(starter: IO[str], answer: dict[str, Any]) -> None:
    """Send the one message that the process which started the agent waits for."""
    with starter:
        starter.write(to_json(answer))


@contextlib.contextmanager
def _prepare(spec: AgentSpec) -> Iterator[tuple[RunFolder, int, socket.socket]]:
    """The run folder with its files, its lock, and the agent's port."""
    run = RunFolder(Path(spec.run))
    run.create()
    with run.lock(with_others=True) as lock, _hold(run.agent_lock(spec.host), spec.launch):
        _refuse_other_launches(run, spec.launch)
        expected = {path.name: path for path in run.start_files}
        for name, content in spec.files.items():
            if name not in expected:
                raise RunError(f"{name!r} is not a file that a launcher may send")
            write_atomically(expected[name], base64.b64decode(content))
        run.require()
        if spec.roster_digest:
            with contextlib.suppress(RunError):  # then commands on this host want --trust-hosts
                trust(spec.roster_digest)
        try:
            listener = listen(spec.me.address, spec.port)
        except OSError as error:
            raise RunError(
                f"{spec.me.name}: cannot listen on {spec.me.address}:{spec.port}: {error.strerror}; choose another "
                "port with --port, or another network card with --interface"
            ) from None
        try:
            yield run, lock, listener
        finally:
            listener.close()


@contextlib.contextmanager
def _hold(path: Path, launch: str) -> Iterator[None]:
    """The lock of one host's agent; in it are its process number, its launch and its machine."""
    descriptor = open_no_link(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        if not take_lock(descriptor, fcntl.LOCK_EX, LOOK_S):
            raise _is_under_way(path.parent)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {launch} {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _refuse_other_launches(run: RunFolder, launch: str) -> None:
    """RunError if another launch, which may number the hosts in another order, has an agent here."""
    holders = [_holder(path, LOOK_S) for path in run.agent_locks()]
    if any(holder is not None and holder.launch != launch for holder in holders):
        raise _is_under_way(run.path)


def _is_under_way(folder: Path) -> RunError:
    run = shlex.quote(str(folder))
    return RunError(
        f"{folder}: an agent of this host is at work already, so the run is under way; `echelon attach {run}` "
        f"follows it, `echelon stop {run}` ends it"
    )


def _redirect_output(log: Path) -> None:
    descriptor = open_no_link(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, descriptor), (2, descriptor)):
        os.dup2(source, target)


_PID = re.compile(r"[1-9]\d{0,8}")
"""Not -1 or 0, which would be every process or a whole group."""


@dataclass(frozen=True)
class AgentHere:
    """An agent at work on this machine."""

    host: int
    pid: int
    launch: str


def list_agents(run: RunFolder) -> list[AgentHere]:
    """The agents of a run on this machine."""
    return [agent for path in run.agent_locks() if (agent := _holder(path)) is not None]


def find_agent(run: RunFolder, host: int) -> int | None:
    """The process number of the agent of host number `host`; None if none runs on this machine."""
    holder = _holder(run.agent_lock(host))
    return holder.pid if holder else None


def _holder(path: Path, patience_s: float = 0.0) -> AgentHere | None:
    """The agent on this machine that holds the lock at `path`, still after `patience_s`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        words = os.pread(descriptor, 300, 0).decode(errors="replace").split()
        if len(words) != 3 or words[2] != socket.gethostname() or not _PID.fullmatch(words[0]):
            return None
        if take_lock(descriptor, fcntl.LOCK_EX, patience_s):
            return None
        return AgentHere(int(path.stem.removeprefix("agent-")), int(words[0]), words[1])
    finally:
        os.close(descriptor)


def stay(run: RunFolder, host: int) -> None:
    """Return when the agent has come and gone, or has not come in time."""
    deadline = time.monotonic() + _COME_S
    while find_agent(run, host) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while find_agent(run, host) is not None:
        time.sleep(_POLL_S)


def stop(run: RunFolder, host: int, *, now: bool) -> dict[str, Any]:
    """Have the run save and leave, on all hosts; `now`: end this host's workers and its agent at once."""
    holder = _holder(run.agent_lock(host))
    if holder is None:
        return {"was_running": False}
    pid = holder.pid
    with contextlib.suppress(ProcessLookupError):
        if not now:
            os.kill(pid, signal.SIGTERM)
            return {"was_running": True}
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing while its workers are being ended
        for worker in workers_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker, signal.SIGKILL)
        # Without this last record, a launcher would take it for dead and start it again.
        with contextlib.closing(RecordWriter(run.agent_records(host))) as records:
            write_outcome(records, RunOutcome("interrupted", launch=holder.launch), socket.gethostname())
        os.kill(pid, signal.SIGKILL)
        while find_agent(run, host) == pid:
            time.sleep(0.02)
    return {"was_running": True}


def workers_of(pid: int) -> list[int]:
    """The running workers that agent `pid` has started: those of its processes that lead a group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[1:3]
            if int(parent) == pid and group == entry.name:
                found.append(int(entry.name))
    return found
