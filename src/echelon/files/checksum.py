"""Checksums of a checkpoint's files: they find a truncated file or a flipped bit.

XXH3-128 runs at the speed of memory, so that training does not notice it. It is no signature, and neither was SHA-256,
which older checkpoints have: whoever can write a file can write the sidecar that vouches for it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash

from echelon.runfolder import require_regular

ALGORITHM = "xxh3_128"
"""The algorithm for new checkpoints; `xxhsum -H2` computes the same."""
OLDER_ALGORITHM = "sha256"
_READ_BYTES = 2**20


@dataclass(frozen=True)
class Written:
    """A file on the disk: its checksum and its size."""

    checksum: str
    bytes: int


class Checksum(Protocol):
    """A checksum that grows with what it is shown."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_checksum(algorithm: str = ALGORITHM) -> Checksum:
    return hashlib.sha256() if algorithm == OLDER_ALGORITHM else xxhash.xxh3_128()


def checksum_of(content: bytes) -> str:
    checksum = new_checksum()
    checksum.update(content)
    return checksum.hexdigest()


def checksum_of_file(path: Path, algorithm: str) -> str:
    """OSError if the file cannot be read, or not be loaded because it is larger than the memory."""
    require_regular(path, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    checksum, buffer = new_checksum(algorithm), memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum.update(buffer[:count])
    return checksum.hexdigest()
