"""A container on each host for the whole run: the agent and its workers live in it, and it ends with the agent."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from echelon.cluster.starting import Seat, do_everywhere
from echelon.errors import RemoteError
from echelon.launch.container import (
    PYTHON,
    Container,
    DockerHost,
    container_name,
    look_at,
    render_kill,
    render_run,
)

_START_S = 120.0


def open_boxes(image: str, seats: Sequence[Seat], run: Path, data: Path) -> list[Seat]:
    """Start a container on each host; the seats, with everything to be run inside."""
    return do_everywhere(seats, lambda seat: _open_box(image, seat, run, data))


def _open_box(image: str, seat: Seat, run: Path, data: Path) -> Seat:
    folders = sorted({run, data})
    seat.remote.run(["mkdir", "-p", str(run)], timeout_s=_START_S)
    host = look_at(seat.remote, folders)
    command = render_box(image, seat, run, data, host)
    completed = seat.remote.run(command, timeout_s=_START_S)
    if completed.status != 0:
        raise RemoteError(seat.name, "failed", completed.stderr.decode(errors="replace").strip())
    name = container_name(run, seat.number)
    return replace(seat, python=("docker", "exec", "--interactive", name, PYTHON))


def render_box(image: str, seat: Seat, run: Path, data: Path, host: DockerHost | None = None) -> list[str]:
    """The command that starts a host's container, which waits for the agent to come and to go."""
    host = host or DockerHost(0, 0, 0, frozenset())
    container = Container(image, container_name(run, seat.number), tuple(dict.fromkeys((run, data))))
    stay = [PYTHON, "-m", "echelon.agent", "stay", str(run), str(seat.number)]
    return render_run(container, host, stay, in_background=True)


def end_boxes(seats: Sequence[Seat], run: Path) -> None:
    """End the containers that are left; most have ended with their agents."""

    def end(seat: Seat) -> None:
        with contextlib.suppress(RemoteError):
            seat.remote.run(render_kill(container_name(run, seat.number)), timeout_s=20)

    do_everywhere(seats, end)
