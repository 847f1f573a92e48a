"""TensorBoard for a run, on this machine's loopback; through an SSH tunnel if the run's curves are on a host."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from typing import IO

from echelon.agent.tensorboard_server import serve_tensorboard
from echelon.cluster.host_session import HostSession
from echelon.cluster.roster import open_sessions, read_roster
from echelon.errors import RemoteError, RunError
from echelon.launch.ssh import side_by_side
from echelon.runfolder import RunFolder, parse_json

_START_S = 30.0


@contextlib.contextmanager
def open_tensorboard(run: RunFolder, port: int) -> Iterator[str]:
    """Serve a run's curves inside the `with` block; yields the address for a browser on this machine."""
    roster = read_roster(run.require())
    if roster is None or any(entry.sees_our_folder for entry in roster.entries):
        with serve_tensorboard(run, _check_free(port)):
            yield f"http://127.0.0.1:{port}/"
        return
    with open_sessions(roster) as sessions, _tunnel(_find_newest(sessions, run), run, _check_free(port)):
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def _tunnel(session: HostSession, run: RunFolder, port: int) -> Iterator[None]:
    command = [*session.python, "-m", "echelon.agent", "tensorboard", str(run.path)]
    process = session.remote.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            session.remote.forward(port, _hear_port(session, process.stdout))
            yield
        finally:
            process.stdin.close()  # which ends TensorBoard there


def _hear_port(session: HostSession, answers: IO[bytes]) -> int:
    """The port TensorBoard listens on there. A login script may have printed something before."""
    problem = "it says nothing"
    for line in answers:
        with contextlib.suppress(ValueError):
            match parse_json(line):
                case {"port": int(port)}:
                    return port
                case {"error": str(problem)}:
                    break
    raise RunError(f"{session.name}: {problem}")


def _find_newest(sessions: list[HostSession], run: RunFolder) -> HostSession:
    """The host with the newest curves: the one that has the run's first worker."""

    def ask(session: HostSession) -> float:
        try:
            return session.ask(run.path, timeout_s=_START_S).tensorboard_time
        except RemoteError:
            return -1.0

    times = side_by_side(sessions, ask)
    newest = max(times)
    if newest <= 0:
        raise RunError(f"{run.path}: no host that can be reached has TensorBoard's files (track.tensorboard)")
    return sessions[times.index(newest)]


def _check_free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used here: {error.strerror}; choose another with --port"
            ) from None
    return port
