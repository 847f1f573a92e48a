"""`python -m echelon.launch.receive`: the host's end of `--sync`; launch/sync.py is the other.

The sender says what the folder holds; this end says what it has of that already; files come one after the other, each
checked by its SHA-256 before it gets its name. The folder itself appears under its name when all of it is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from echelon.data.exclusive_folder import locked
from echelon.data.fingerprints import sha256_of_file
from echelon.launch.dialogue import say
from echelon.runfolder import parse_json, sync_to_disk

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class SentFile:
    """A file that the folder is to hold."""

    name: str
    """Relative to the folder."""
    bytes: int
    sha256: str


class SyncReceiver:
    """Receives a folder's files; `have` says how much of each is there already."""

    def __init__(self, target: Path, files: list[SentFile]) -> None:
        for file in files:
            path = PurePosixPath(file.name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"{file.name!r} would lie outside the folder")
        self._target = target
        # A folder that exists under its final name can only be repaired in place.
        self._folder = target if target.is_dir() else target.with_name(f".{target.name}.arriving")
        self._files = {file.name: file for file in files}

    def have(self) -> dict[str, tuple[int, str]]:
        """Bytes and their SHA-256 of each file that is there, whole or in part."""
        if self._folder != self._target:
            self._remove_others()
        found = {}
        for file in self._files.values():
            whole, part = self._folder / file.name, self._part(file.name)
            if _digest_of(part) == (file.bytes, file.sha256):
                part.replace(whole)  # we were stopped just before this
            held = _digest_of(whole)
            if held != (file.bytes, file.sha256):
                held = _digest_of(part)
            if held is not None:
                found[file.name] = held
        return found

    @property
    def free_bytes(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._folder).free

    def take(self, name: str, offset: int, source: IO[bytes]) -> bool:
        """Read the rest of a file, from `offset` on; if the whole is wrong, remove it and return False."""
        file, part = self._files[name], self._part(name)
        part.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(part, "r+b" if part.exists() else "w+b") as out:
            while out.tell() < offset and (block := out.read(min(_READ_BYTES, offset - out.tell()))):
                digest.update(block)
            out.truncate(offset)
            left = file.bytes - offset
            while left and (block := source.read(min(_READ_BYTES, left))):
                out.write(block)
                digest.update(block)
                left -= len(block)
            out.flush()
            os.fsync(out.fileno())
        if left:
            raise EOFError
        if digest.hexdigest() != file.sha256:
            part.unlink()
            return False
        part.replace(self._folder / name)
        return True

    def finish(self) -> None:
        """Give the folder its name."""
        sync_to_disk(self._folder)
        if self._folder != self._target:
            self._folder.rename(self._target)
            sync_to_disk(self._target.parent)

    def _remove_others(self) -> None:
        """Leftovers of an earlier transfer that are not part of this one."""
        ours = {path for name in self._files for path in (self._folder / name, self._part(name))}
        for path in self._folder.rglob("*"):
            if path not in ours and not path.is_dir():
                path.unlink()

    def _part(self, name: str) -> Path:
        path = self._folder / name
        return path.with_name(f".{path.name}.part")


def _digest_of(path: Path) -> tuple[int, str] | None:
    """A file's size and SHA-256; None if there is none."""
    return (path.stat().st_size, sha256_of_file(path)) if path.is_file() else None


def receive(target: Path, files: list[SentFile], source: IO[bytes]) -> None:
    """One transfer, to the end of the sender's orders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f".{target.name}.receiving")):  # hosts may share the folder among themselves
        receiver = SyncReceiver(target, files)
        say({"have": receiver.have(), "free_bytes": receiver.free_bytes})
        while line := source.readline():
            order = parse_json(line)
            if order.get("end"):
                receiver.finish()
                say({"done": True})
                return
            say({"is_right": receiver.take(order["file"], order["offset"], source)})


def main() -> None:
    source = sys.stdin.buffer
    plan = parse_json(source.readline())
    target = Path(plan["target"]).expanduser()
    try:
        receive(target, [SentFile(**file) for file in plan["files"]], source)
    except (EOFError, BrokenPipeError):
        sys.exit(1)  # the sender has gone; what has arrived stays for the next time
    except OSError as error:
        say({"error": f"{error.filename or target}: {error.strerror}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
