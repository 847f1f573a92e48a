"""What a file contains, as a SHA-256, remembered so that large files are read for it only once."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from echelon.errors import DataError
from echelon.runfolder import read_json

READ_BYTES = 1 << 20
SETTLED_NS = 2_000_000_000
"""A file changed less than two seconds ago could change again without its time stamp showing it."""


def sha256_of_file(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of a file's content; calls `on_bytes` with the size of each block read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()


class HashMemory:
    """SHA-256 of files, kept in a JSON file as long as their size and time stamps stay the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int | str]] = {}
        with suppress(OSError, ValueError):  # missing or damaged: hash again
            known = read_json(path)
            self._known = known if isinstance(known, dict) else {}

    def sha256(self, path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
        """The file's SHA-256; DataError if it cannot be read."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path} is not a file, but a folder or device; name a file")
            stamps: list[int | str] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            name = os.path.realpath(path)
            match self._known.get(name):
                case [*known, str(sha256)] if known == stamps:
                    on_bytes(status.st_size)
                    return sha256
            sha256 = sha256_of_file(path, on_bytes)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._known[name] = [*stamps, sha256]
        return sha256

    def save(self) -> None:
        """Save the cache without files that are gone; a failure to save is ignored."""
        known = {name: entry for name, entry in self._known.items() if os.path.exists(name)}
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)
