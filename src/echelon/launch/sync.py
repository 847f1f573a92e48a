"""`--sync`: copies a folder to hosts that do not share it: checked by SHA-256, resumable.

launch/receive.py is the host's end. Why this is not rsync: docs/decisions/0033.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from echelon.data.fingerprints import sha256_of_file
from echelon.errors import DataError, RemoteError
from echelon.launch.dialogue import Dialogue
from echelon.launch.findings import show_bytes
from echelon.launch.receive import SentFile
from echelon.launch.session import find_python
from echelon.launch.ssh import Remote, on_all

_SEND_BYTES = 1 << 20
ShowProgress = Callable[[str, int, int], None]
"""Called with the host, bytes sent so far and bytes to send."""


def sync_hosts(
    remotes: Sequence[Remote],
    source: Path,
    target: Path,
    *,
    pythons: Mapping[str, Sequence[str]] | None = None,
    progress: ShowProgress = lambda host, sent, total: None,
) -> dict[str, int | RemoteError]:
    """Copy a folder to all hosts at once; for each the bytes that were sent, or what went wrong."""
    files = list_files(source)

    def sync(remote: Remote) -> int:
        python = (pythons or {}).get(remote.host)
        return sync_folder(remote, source, target, files=files, python=python, progress=progress)

    return on_all(remotes, sync)


def sync_folder(
    remote: Remote,
    source: Path,
    target: Path,
    *,
    files: Sequence[SentFile] | None = None,
    python: Sequence[str] | None = None,
    progress: ShowProgress = lambda host, sent, total: None,
) -> int:
    """Make `target` on a host hold what `source` holds here; return the bytes that it did not have yet.

    `files` are those of `source`, if the caller has listed them. Raises RemoteError; what had arrived then stays,
    and the next call resumes there.
    """
    files = list_files(source) if files is None else files
    python = [find_python(remote)] if python is None else python
    with Dialogue(remote, [*python, "-m", "echelon.launch.receive"]) as other:
        other.send({"target": str(target), "files": [asdict(file) for file in files]})
        answer = other.answer("what is there already")
        found = [_find_missing(source, file, answer["have"].get(file.name)) for file in files]
        pieces = [piece for piece in found if piece]
        total = sum(piece.bytes for piece in pieces)
        _check_room(remote.host, target, total, answer["free_bytes"])
        sent = 0

        def count(block_bytes: int) -> None:
            nonlocal sent
            sent += block_bytes
            progress(remote.host, sent, total)

        for piece in pieces:
            _send(other, source, piece, count)
        other.send({"end": True})
        other.answer("the end of the transfer")
    return sent


def list_files(folder: Path) -> list[SentFile]:
    """The files in a folder, by name, with their SHA-256; DataError if it holds anything else."""
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder to copy")
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    odd = [path for path in paths if path.is_symlink() or not path.is_file()]
    if odd:
        raise DataError(f"{odd[0]}: is a link or a device; only files can be copied to hosts")
    try:
        return [
            SentFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of_file(path))
            for path in paths
        ]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class _Piece:
    """The rest of a file that has to be sent."""

    file: SentFile
    offset: int

    @property
    def bytes(self) -> int:
        return self.file.bytes - self.offset


def _find_missing(source: Path, file: SentFile, there: tuple[int, str] | None) -> _Piece | None:
    """The part of a file that a host lacks, given the size and SHA-256 of what it has."""
    if there is None:
        return _Piece(file, 0)
    count, sha256 = there
    if (count, sha256) == (file.bytes, file.sha256):
        return None
    return _Piece(file, count if _sha256_of_first(count, source / file.name) == sha256 else 0)


def _sha256_of_first(count: int, path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(min(_SEND_BYTES, count - file.tell())):
            digest.update(block)
    return digest.hexdigest()


def _check_room(host: str, target: Path, needed: int, free: int) -> None:
    if needed > free:
        raise RemoteError(
            host,
            "failed",
            f"{show_bytes(needed)} of data are to go to {target}, where {show_bytes(free)} are free",
            "make room there",
        )


def _send(other: Dialogue, source: Path, piece: _Piece, count: Callable[[int], None]) -> None:
    """Send the rest of a file, and all of it again if its checksum is then wrong there."""
    name = piece.file.name
    for begin in (piece.offset, 0):
        other.send({"file": name, "offset": begin})
        with open(source / name, "rb") as file:
            file.seek(begin)
            while file.tell() < piece.file.bytes:
                block = file.read(min(_SEND_BYTES, piece.file.bytes - file.tell()))
                if not block:
                    raise DataError(f"{source / name}: became shorter while it was being copied")
                other.write(block)
                count(len(block))
        if other.answer(name)["is_right"]:
            return
    raise RemoteError(
        other.host, "failed", f"{name} arrived damaged, twice", "check that host's memory and disk"
    )
