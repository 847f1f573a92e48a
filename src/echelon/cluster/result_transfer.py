"""Copies the result of a run from a host that has a run folder of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from echelon.agent.result_archive import BEGIN
from echelon.cluster.host_session import HostSession
from echelon.errors import RemoteError, TrainingError
from echelon.launch.ssh import side_by_side
from echelon.runfolder import RunFolder, write_atomically

_WANTED = re.compile(
    r"scores/[a-z]+\.(json|txt|references)|checkpoints/step-\d{8,}/[a-z0-9-]+\.(safetensors|json)(\.[a-z0-9]+\.json)?"
)
_MOST_BYTES = 2**40
_MOST_JSON_BYTES = 2**26
_MOST_HEADER_BYTES = 2**20
_COPY_BYTES = 2**22
_LINE_BYTES = 2**16


class _PlainEntry(tarfile.TarInfo):
    """An entry whose header, which tarfile reads into memory as a whole, is not larger than headers are."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # Every version of tarfile calls this before it reads a header; patched ones no longer call `frombuf`.
        if self.type not in tarfile.REGULAR_TYPES and self.size > _MOST_HEADER_BYTES:
            raise tarfile.TarError(f"{self.name!r} has a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


def fetch_results(sessions: Sequence[HostSession], run: RunFolder) -> str:
    """Copy scores, and the best and the last checkpoint, from the host with the newest; return its name.

    A host that was lost meanwhile may know that the run has finished, but have an old checkpoint. Raises TrainingError
    if no host can be copied from.
    """
    steps = side_by_side(sessions, lambda session: _last_step(session, run))
    problems = []
    for number in sorted(range(len(sessions)), key=lambda number: -steps[number]):
        session = sessions[number]
        try:
            if _fetch(session, run):
                return session.name
            problems.append(f"{session.name}: the transfer broke off")
        except (RemoteError, OSError, tarfile.TarError) as error:
            problems.append(str(error) if isinstance(error, RemoteError) else f"{session.name}: {error}")
    raise TrainingError(
        "\n".join(
            [
                "training has finished, but its result could not be brought here; the same command tries again:",
                *problems,
            ]
        )
    )


def have_no_checkpoint(sessions: Sequence[HostSession], run: RunFolder) -> bool:
    """Whether every host says that it has no checkpoint of the run; a host that cannot be asked may have one."""
    return all(step == 0 for step in side_by_side(sessions, lambda session: _last_step(session, run)))


def _last_step(session: HostSession, run: RunFolder) -> int:
    """The step of a host's newest checkpoint; 0 if it has none, -1 if it cannot be asked."""
    try:
        return session.ask(run.path).last_step
    except RemoteError:
        return -1


def _fetch(session: HostSession, run: RunFolder) -> bool:
    command = [*session.python, "-m", "echelon.agent", "pack", str(run.path)]
    process = session.remote.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process:
        assert process.stdout is not None
        count = unpack(process.stdout, run.path)
    return process.returncode == 0 and count > 0


def unpack(stream: IO[bytes], folder: Path) -> int:
    """Write a packed run's files below `folder` and return their number; names that a run does not have are refused."""
    while (line := stream.readline(_LINE_BYTES)) != BEGIN:
        if not line:
            raise tarfile.TarError("nothing came")
    try:
        return _unpack_archive(stream, folder)
    except (ValueError, RecursionError) as error:  # of odd headers, or of thousands before one file
        raise tarfile.TarError(f"this is no archive of a run: {error}") from None


def _unpack_archive(stream: IO[bytes], folder: Path) -> int:
    count = 0
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainEntry) as archive:
        for entry in archive:
            most = _MOST_JSON_BYTES if entry.name.endswith(".json") else _MOST_BYTES
            is_plain = entry.isfile() and not entry.issparse()
            if not is_plain or not _WANTED.fullmatch(entry.name) or entry.size > most:
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
    try:
        with open(temporary, "xb") as file:
            shutil.copyfileobj(content, file, _COPY_BYTES)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
