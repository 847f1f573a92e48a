"""A container on each host for the whole run: the agent and its workers run in it, and it ends with the agent."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.agent.agent import LEAVE_FILE
from echelon.cluster.host_session import HostSession
from echelon.errors import RemoteError, RunError
from echelon.launch.container import (
    PYTHON,
    Container,
    DockerHost,
    container_name,
    look_at,
    python_with,
    render_kill,
    render_run,
)
from echelon.launch.ssh import side_by_side

_NOTICES = Path(LEAVE_FILE).parent
"""Where a host is told that it is about to be taken away."""
_START_S = 120.0
_REPLACE_S = 20.0
"""How long a container that is no longer needed may take to end."""
_RETRY_S = 0.5


@contextlib.contextmanager
def host_containers(
    image: str, sessions: Sequence[HostSession], run: Path, data: Path
) -> Iterator[list[HostSession]]:
    """Start a container on each host, and end them afterwards; yields sessions that run everything inside.

    Containers that were not started here are not ended: one with an agent in it belongs to a run under way.
    """
    opened: dict[int, HostSession] = {}

    def open_one(session: HostSession) -> None:
        opened[session.number] = start_container(image, session, run, data)

    try:
        side_by_side(sessions, open_one)
        yield [opened[session.number] for session in sessions]
    finally:
        _end_containers(list(opened.values()), run)


def start_container(image: str, session: HostSession, run: Path, data: Path) -> HostSession:
    """Start a host's container; RunError if there is already one with an agent at work."""
    session.remote.run(["mkdir", "-p", str(run)], timeout_s=_START_S)
    host = look_at(session.remote, [_NOTICES])
    command = render_host_container(image, session, run, data, host)
    name = container_name(run, session.number)
    inside = replace(session, python=("docker", "exec", "--interactive", name, PYTHON))
    deadline = time.monotonic() + _REPLACE_S
    while True:
        completed = session.remote.run(command, timeout_s=_START_S)
        if completed.status == 0:
            return inside
        said = completed.stderr.decode(errors="replace").strip()
        if "is already in use" not in said or time.monotonic() > deadline:
            raise RemoteError(session.name, "failed", said)
        _end_unused(inside, run)
        time.sleep(_RETRY_S)


def find_containers(sessions: Sequence[HostSession], run: Path, image: str | None) -> list[HostSession]:
    """Return sessions that reach a run's hosts now: inside their containers, or outside if those have ended."""
    if image is None:
        return list(sessions)

    def find(session: HostSession) -> HostSession:
        with contextlib.suppress(RemoteError):
            session.ask(run)
            return session
        with contextlib.suppress(RemoteError):  # if this fails too, it answers as little as it did
            return replace(session, python=tuple(python_with(session.remote, image, run)))
        return session

    return side_by_side(sessions, find)


def _end_unused(inside: HostSession, run: Path) -> None:
    """End a container without an agent; RunError if it has one. A container that does not answer is about to end."""
    with contextlib.suppress(RemoteError):
        if inside.ask(run).is_running:
            raise RunError(
                f"{inside.name}: {run}: is being trained in a container there already; `echelon attach "
                f"{shlex.quote(str(run))}` follows it, `echelon stop {shlex.quote(str(run))}` ends it"
            )
        _end_container(inside, run)


def render_host_container(
    image: str, session: HostSession, run: Path, data: Path, host: DockerHost | None = None
) -> list[str]:
    """Return the command that starts a host's container, which waits for the agent to come and to go."""
    host = host or DockerHost(0, 0, 0, frozenset())
    notices = (_NOTICES,) if _NOTICES in host.folders else ()
    container = Container(
        image, container_name(run, session.number), tuple(dict.fromkeys((run, data))), notices
    )
    stay = [PYTHON, "-m", "echelon.agent", "stay", str(run), str(session.number)]
    return render_run(container, host, stay, in_background=True)


def _end_containers(sessions: Sequence[HostSession], run: Path) -> None:
    """End the containers that are left; most have ended with their agents."""
    side_by_side(sessions, lambda session: _end_container(session, run))


def _end_container(session: HostSession, run: Path) -> None:
    with contextlib.suppress(RemoteError):
        session.remote.run(render_kill(container_name(run, session.number)), timeout_s=20)
