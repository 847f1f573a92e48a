"""Bringing the result of a run home from a host that has a run folder of its own."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from echelon.cluster.starting import Seat, do_everywhere
from echelon.errors import RemoteError
from echelon.runfolder import RunFolder, write_atomically

_WANTED = re.compile(
    r"scores/[a-z]+\.(json|txt)|checkpoints/step-\d{8,}/[a-z0-9-]+\.(safetensors|json)(\.[a-z0-9]+\.json)?"
)
_MOST_BYTES = 2**40


def fetch_results(seats: Sequence[Seat], run: RunFolder) -> str | None:
    """Copy scores, and the best and the last checkpoint, from the host that is farthest; its name.

    A host that was lost on the way may hear that the run has finished, and have an old checkpoint all the same.
    """
    steps = do_everywhere(seats, lambda seat: _last_step(seat, run)) if seats else []
    order = sorted(range(len(seats)), key=lambda number: -steps[number])
    for seat in (seats[number] for number in order):
        try:
            if _fetch(seat, run):
                return seat.name
        except (RemoteError, OSError, tarfile.TarError):
            continue  # the next host has them as well
    return None


def _last_step(seat: Seat, run: RunFolder) -> int:
    try:
        return int(seat.run_agent("ask", str(run.path), str(seat.number))["last_step"])
    except RemoteError:
        return -1


def _fetch(seat: Seat, run: RunFolder) -> bool:
    command = [*seat.python, "-m", "echelon.agent", "pack", str(run.path)]
    process = seat.remote.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process:
        assert process.stdout is not None
        count = unpack(process.stdout, run.path)
    return process.returncode == 0 and count > 0


def unpack(stream: IO[bytes], folder: Path) -> int:
    """Write a packed run's files below `folder`; how many. Names that a run does not have are refused."""
    count = 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            if not entry.isfile() or not _WANTED.fullmatch(entry.name) or entry.size > _MOST_BYTES:
                raise tarfile.TarError(f"{entry.name!r} does not belong to a run")
            content = archive.extractfile(entry)
            assert content is not None
            target = folder / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".json":
                write_atomically(target, content.read())
            else:
                _copy(content, target)
            count += 1
    return count


def _copy(content: IO[bytes], target: Path) -> None:
    temporary = target.with_name(f".{target.name}.fetched")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb") as file:
        while block := content.read(2**22):
            file.write(block)
    temporary.replace(target)
