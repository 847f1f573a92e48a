"""Watches a run on many hosts: fetches what they write, and restarts the agent of a host that has rebooted."""

from __future__ import annotations

import base64
import contextlib
import math
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from echelon.agent.follower import FOLLOWED
from echelon.agent.generation import OutcomeName
from echelon.agent.outcome import ALONE
from echelon.agent.spec import AgentSpec
from echelon.cluster.host_session import HostSession, start_agent
from echelon.console import Tell
from echelon.errors import EchelonError, RemoteError, TrainingError
from echelon.launch.local import lines_since
from echelon.launch.ssh import RemoteProcess
from echelon.launch.stop_requests import StopRequests
from echelon.runfolder import RunFolder, open_no_link, parse_json, read_json, to_json, write_json

_RETRY_S = 2.0
_START_S = 60.0
"""How long starting an agent may take."""
_POLL_S = 0.1
_STOP_S = 15.0
"""How long hosts that can be reached may take to end everything at once."""
_LAST_WORDS_S = 10.0
_IN_DOUBT_S = 60.0
"""How long to wait for hosts that cannot be reached, which may continue without those that can."""
_NOTE_S = 2.0
_OF_THE_RUN = get_args(OutcomeName)
"""Outcomes on which all agents agree."""
_MOST_RESTARTS = 100
"""Restarts of one host's agent; a host that fails more often is of no use."""


class SharedFiles:
    """How much has been kept here of files that several hosts share, and all of them send."""

    def __init__(self, run: RunFolder, sessions: Sequence[HostSession]) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}
        for session in sessions:
            for name, offset in _read_offsets(run.mirror_state(session.number)).items():
                self._offsets[name] = max(offset, self._offsets.get(name, 0))

    def append(self, path: Path, name: str, at: int, data: bytes) -> None:
        """Append what of `data`, which begins at offset `at`, no other host has sent."""
        with self._lock:
            data = data[max(0, self._offsets.get(name, 0) - at) :]
            if data:
                _append(path, data)
                self._offsets[name] = max(at, self._offsets.get(name, 0)) + len(data)


class _FullError(Exception):
    """Our own disk cannot hold what a host has sent."""


class HostWatch:
    """One host, followed by a thread until the run has ended."""

    def __init__(
        self,
        session: HostSession,
        spec: AgentSpec | None,
        run: RunFolder,
        tell: Tell,
        *,
        mirrors: bool = True,
        is_ready: Callable[[], bool] = lambda: True,
        shared: SharedFiles | None = None,
        start_container: Callable[[], object] | None = None,
    ) -> None:
        self.session = session
        self.outcome: str | None = None
        """The run's, if it is one of `_OF_THE_RUN`. "alone": the host gave up waiting for others, and may come back.
        "gone": its agent has ended without saying why."""
        self.message = ""
        self.is_reached = True
        self.trains = False
        """Whether it had workers when it was last heard."""
        self.may_come_back = False
        """Whether others train, so that a host that gave up waiting for them should join again."""
        self.is_done = threading.Event()
        self._spec = spec
        """How to restart its agent; None if this process only watches."""
        self._run = run
        self._tell = tell
        self._shared = shared
        self._is_ready = is_ready
        """False while a machine that takes the place of another is being set up."""
        self._start_container = start_container
        """Starts its container again, if it trains in one: the container ended with the agent or with the machine."""
        self._mirrors = mirrors and not session.sees_our_folder
        """Whether what the host writes is to be kept in our run folder, and nobody else does that."""
        self._offsets = _read_offsets(run.mirror_state(session.number)) if self._mirrors else {}
        self._noted_at = 0.0
        self._is_full = False
        self._is_starting = False
        self._restarts = 0
        self._process: RemoteProcess | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watch-{session.name}", daemon=True)
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        """Whether the host can be reached, and has not said how the run has ended."""
        return self.is_reached and not self.outcome

    def close(self) -> None:
        self.is_done.set()
        if self._process is not None:
            self._process.kill()
        # An agent that is just being started again has to be known, to be stopped.
        self._thread.join(timeout=_START_S if self._is_starting else 5.0)
        self._note_offsets()

    def _watch(self) -> None:
        while not self.is_done.is_set():
            try:
                if not self._is_ready():
                    raise RemoteError(self.session.name, "failed", "it is being set up")
                last = self._follow()
                self._note_reached(True)
                if last.get("alive") is False:
                    self._agent_has_gone(last)
            except _FullError as error:
                self._note_full(error)
            except (EchelonError, OSError, ValueError) as error:
                self._note_reached(False, str(error))
            self.is_done.wait(_RETRY_S)

    def _follow(self) -> dict[str, Any]:
        """Take in what the host writes until it stops; return its last message, nothing if its container restarted."""
        session = self.session
        command = [*session.python, "-m", "echelon.agent", "follow", str(self._run.path), str(session.number)]
        self._process = process = session.remote.start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        last: dict[str, Any] = {}
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(to_json(self._offsets if self._mirrors else None).encode())
                process.stdin.close()
            for line in process.stdout:
                news = _parse(line)
                if news is None:
                    continue
                last = news
                self._note_reached(True)
                if "alive" in last:
                    self.trains = bool(last.get("trains"))
                if "file" in last:
                    self._keep(last)
                if self.is_done.is_set():
                    break
            process.kill()
        if not last:
            if self._start_container is None:
                raise RemoteError(session.name, "connection lost", "it cannot be reached")
            self._start_container()
        return last

    def _keep(self, news: dict[str, Any]) -> None:
        """Append what a host wrote to the same file of our own run folder."""
        match news:
            case {"file": str(name), "data": str(text), "at": int(at)} if FOLLOWED.fullmatch(name):
                path, data = self._run.path / name, base64.b64decode(text)
            case _:
                raise ValueError(f"{self.session.name} sent a file {news.get('file')!r}")
        try:
            if self._shared is None:
                _append(path, data)
            else:
                self._shared.append(path, name, at, data)
        except OSError as error:
            raise _FullError(str(error)) from None
        self._offsets[name] = at + len(data)
        if time.monotonic() - self._noted_at > _NOTE_S:
            self._note_offsets()

    def _note_offsets(self) -> None:
        """Write the offsets down, so that whoever watches next continues from here."""
        self._noted_at = time.monotonic()
        if self._mirrors and self._offsets:
            with contextlib.suppress(OSError):
                write_json(self._run.mirror_state(self.session.number), self._offsets)

    def _agent_has_gone(self, last: dict[str, Any]) -> None:
        outcome, message = str(last.get("outcome") or "gone"), str(last.get("message") or "")
        if outcome in _OF_THE_RUN or self._spec is None:
            self._end(outcome, message)
        elif outcome == ALONE and not self.may_come_back:
            self.outcome, self.message = outcome, message
        elif self._restarts == _MOST_RESTARTS:
            log = self._run.agent_log(self.session.number)
            said = "".join(f"\n  {line}" for line in lines_since(log, 0)[-10:])
            self._end("gone", f"{self.session.name}: its agent keeps dying; its log is {log}{said}")
            self._tell(self.message)
        else:
            self._restarts += 1
            self.outcome = None
            self._start_again(self._spec)
            self._tell(f"{self.session.name}: its agent had ended and was restarted")

    def _start_again(self, spec: AgentSpec) -> None:
        self._is_starting = True
        try:
            if not self.is_done.is_set():
                start_agent(self.session, spec)
        finally:
            self._is_starting = False

    def _end(self, outcome: str, message: str) -> None:
        self.outcome, self.message = outcome, message
        self.is_done.set()

    def _note_full(self, error: _FullError) -> None:
        """Report once that our disk cannot hold what the host writes; it is requested again until it can."""
        if not self._is_full:
            self._is_full = True
            self._tell(f"what {self.session.name} writes cannot be kept here: {error}; training continues")

    def _note_reached(self, is_reached: bool, why: str = "") -> None:
        if is_reached != self.is_reached:
            self.is_reached = is_reached
            name = self.session.name
            self._tell(f"{name} can be reached again" if is_reached else f"{name} cannot be reached ({why})")


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse a host's message; None for the output of a login script."""
    with contextlib.suppress(ValueError):
        news = parse_json(line)
        return news if isinstance(news, dict) else None
    return None


def _append(path: Path, data: bytes) -> None:
    """Append all of `data`, or raise OSError and leave the file as it was."""
    with open(path, "ab", buffering=0, opener=open_no_link) as file:
        before = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(before)
            raise


def _read_offsets(path: Path) -> dict[str, int]:
    try:
        return {str(name): int(offset) for name, offset in read_json(path).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet; or damaged, and lines come twice
        return {}


def watch_hosts(
    watches: Sequence[HostWatch], run: Path, stops: StopRequests, on_poll: Callable[[], None]
) -> OutcomeName:
    """Wait until the run has ended on all hosts that can be reached, and return how; TrainingError if it failed.

    One host that knows how the run has ended is enough. A host that has waited in vain, or keeps dying, counts only if
    no other continues. The first stop request has the run save and leave, the second ends it at once.
    """
    asked, deadline, ended_at = 0, math.inf, math.inf
    while True:
        on_poll()
        now = time.monotonic()
        if stops.level > asked:
            asked, deadline = stops.level, now + _STOP_S
            for watch in watches:
                threading.Thread(target=stop_host, args=(watch.session, run, asked > 1), daemon=True).start()
        patience_s = _patience_s(watches)
        ended_at = math.inf if patience_s == math.inf else min(ended_at, now)
        if now - ended_at >= patience_s:
            break
        is_any_training = any(watch.trains and watch.is_under_way for watch in watches)
        for watch in watches:
            watch.may_come_back = is_any_training and not asked
        if asked > 1 and (now > deadline or not any(watch.is_under_way for watch in watches)):
            return _interrupted_everywhere(watches)
        time.sleep(_POLL_S)
    on_poll()
    return _judge(watches)


def _patience_s(watches: Sequence[HostWatch]) -> float:
    """How long to wait for the hosts that have not said how the run has ended; infinity while it is under way."""
    outcomes = [watch.outcome for watch in watches if watch.outcome]
    is_under_way = any(watch.is_under_way for watch in watches)
    if any(outcome in _OF_THE_RUN for outcome in outcomes):
        return _LAST_WORDS_S if is_under_way else 0.0
    if is_under_way or not outcomes:
        return math.inf
    return 0.0 if len(outcomes) == len(watches) else _IN_DOUBT_S


def stop_host(session: HostSession, run: Path, now: bool) -> None:
    """Tell a host's agent to stop; a host that cannot be reached is told by the others, or stops when alone."""
    with contextlib.suppress(EchelonError):
        session.run_agent("stop", str(run), str(session.number), *(["--now"] if now else []), timeout_s=20)


def _judge(watches: Sequence[HostWatch]) -> OutcomeName:
    outcomes = {watch.outcome for watch in watches}
    if "finished" in outcomes:
        return "finished"
    if "interrupted" in outcomes:
        return "interrupted"
    told = sorted((watch for watch in watches if watch.message), key=lambda watch: watch.outcome != "failed")
    raise TrainingError(told[0].message if told else "the agents of all hosts have gone")


def _interrupted_everywhere(watches: Sequence[HostWatch]) -> OutcomeName:
    """Return that the run was interrupted; TrainingError if a host could not be told."""
    missing = [watch.session.name for watch in watches if not watch.outcome and not watch.is_reached]
    if missing:
        raise TrainingError(
            f"stopped; {', '.join(missing)} could not be reached: what runs there ends when it finds itself alone"
        )
    return "interrupted"
