"""A container on each host for the whole run: the agent and its workers live in it, and it ends with the agent."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.agent.agent import LEAVE_FILE
from echelon.cluster.starting import Seat
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
_MAKE_WAY_S = 20.0
"""How long a container that is no longer needed may take to end."""
_RETRY_S = 0.5


@contextlib.contextmanager
def boxes(image: str, seats: Sequence[Seat], run: Path, data: Path) -> Iterator[list[Seat]]:
    """A container on each host while this lasts; yields the seats, with everything to be run inside.

    Only those that were opened here are ended: one that has an agent in it is that of a run which is going on.
    """
    opened: dict[int, Seat] = {}

    def open_one(seat: Seat) -> None:
        opened[seat.number] = open_box(image, seat, run, data)

    try:
        side_by_side(seats, open_one)
        yield [opened[seat.number] for seat in seats]
    finally:
        _end_boxes(list(opened.values()), run)


def open_box(image: str, seat: Seat, run: Path, data: Path) -> Seat:
    """Start a host's container; RunError where there is one with an agent at work."""
    seat.remote.run(["mkdir", "-p", str(run)], timeout_s=_START_S)
    host = look_at(seat.remote, [_NOTICES])
    command = render_box(image, seat, run, data, host)
    name = container_name(run, seat.number)
    inside = replace(seat, python=("docker", "exec", "--interactive", name, PYTHON))
    deadline = time.monotonic() + _MAKE_WAY_S
    while True:
        completed = seat.remote.run(command, timeout_s=_START_S)
        if completed.status == 0:
            return inside
        said = completed.stderr.decode(errors="replace").strip()
        if "is already in use" not in said or time.monotonic() > deadline:
            raise RemoteError(seat.name, "failed", said)
        _make_way(inside, run)
        time.sleep(_RETRY_S)


def find_boxes(seats: Sequence[Seat], run: Path, image: str | None) -> list[Seat]:
    """The hosts of a run as they can be asked now: inside their containers, or outside of those that have ended."""
    if image is None:
        return list(seats)

    def find(seat: Seat) -> Seat:
        with contextlib.suppress(RemoteError):
            seat.ask(run)
            return seat
        with contextlib.suppress(RemoteError):  # if this fails too, it answers as little as it did
            return replace(seat, python=tuple(python_with(seat.remote, image, run)))
        return seat

    return side_by_side(seats, find)


def _make_way(inside: Seat, run: Path) -> None:
    """End a container that has no agent in it; RunError where it has one. One that does not answer is ending."""
    with contextlib.suppress(RemoteError):
        if inside.ask(run).is_running:
            raise RunError(
                f"{inside.name}: {run}: is being trained in a container there already; `echelon attach "
                f"{shlex.quote(str(run))}` follows it, `echelon stop {shlex.quote(str(run))}` ends it"
            )
        _end_box(inside, run)


def render_box(image: str, seat: Seat, run: Path, data: Path, host: DockerHost | None = None) -> list[str]:
    """The command that starts a host's container, which waits for the agent to come and to go."""
    host = host or DockerHost(0, 0, 0, frozenset())
    notices = (_NOTICES,) if _NOTICES in host.folders else ()
    container = Container(image, container_name(run, seat.number), tuple(dict.fromkeys((run, data))), notices)
    stay = [PYTHON, "-m", "echelon.agent", "stay", str(run), str(seat.number)]
    return render_run(container, host, stay, in_background=True)


def _end_boxes(seats: Sequence[Seat], run: Path) -> None:
    """End the containers that are left; most have ended with their agents."""
    side_by_side(seats, lambda seat: _end_box(seat, run))


def _end_box(seat: Seat, run: Path) -> None:
    with contextlib.suppress(RemoteError):
        seat.remote.run(render_kill(container_name(run, seat.number)), timeout_s=20)
