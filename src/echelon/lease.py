"""Who may write to a run folder that several hosts share: the newest generation, and no other.

    generations/000007.json      who leads generation 7; made once, renewed every second

A number is taken by making its file, which the file system lets only one host do. Another host takes a higher number
only if the newest lease was given back, or its file has not changed for `LEASE_S`, by the other host's own clock:
clocks of hosts are not compared. Workers look for a newer file before they replace or vouch for any file of a
checkpoint, so a host that was cut off or frozen and comes back changes nothing that counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from echelon.errors import TrainingError
from echelon.runfolder import RunFolder, read_file, to_json, write_atomically

LEASE_S = 4.0
_FILE_NAME = re.compile(r"(\d{6,})\.json")
_GIVEN_BACK = "{}\n"
_KEPT = 20
"""How many old generations' files are kept for inspection."""


class Lease:
    """One host's claim on the run folder. All methods may block on the file system, and raise OSError."""

    def __init__(self, run: RunFolder, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = run.generations
        self._host = host
        self._clock = clock
        self._held: int | None = None
        self._renewals = 0
        self._seen: tuple[int, bytes, float] | None = None

    def look(self) -> None:
        """Take notice of the newest lease, often, so that `claim` knows for how long it has not changed."""
        self._folder.parent.stat()  # raises if the run folder is missing
        newest = newest_generation(self._folder)
        if newest is None:
            return
        try:
            content = read_file(self._folder / file_name(newest))
        except FileNotFoundError:  # it has just been replaced
            content = b""
        if self._seen is None or self._seen[:2] != (newest, content):
            self._seen = (newest, content, self._clock())

    def claim(self, number: int) -> int | None:
        """Take the folder over with generation `number`, or the next free one; None while another host holds it."""
        self.look()
        newest = self._seen[0] if self._seen else None
        if newest is not None and newest != self._held and self._is_fresh():
            return None
        number = max(number, (newest or 0) + 1)
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            with open(self._folder / file_name(number), "x") as file:
                file.write(self._content())
                file.flush()
                os.fsync(file.fileno())
            self._held = number
            self._remove_old(number)
            return number
        return None

    def renew(self) -> bool:
        """Keep the lease alive; False if a newer generation has taken the folder over.

        The file is written over in place, which a full disk has room for; a reader that sees half of it sees a change.
        """
        assert self._held is not None
        self._folder.parent.stat()
        if newest_generation(self._folder) != self._held:
            return False
        self._renewals += 1
        with open(self._folder / file_name(self._held), "r+b", buffering=0) as file:
            file.write(self._content().encode())
            os.fsync(file.fileno())
        return True

    def give_back(self) -> None:
        """Stop holding: the next generation need not wait."""
        if self._held is not None and newest_generation(self._folder) == self._held:
            write_atomically(self._folder / file_name(self._held), _GIVEN_BACK)
        self._held = None

    def _is_fresh(self) -> bool:
        """Whether the newest file may still be renewed by a living host."""
        assert self._seen is not None
        _, content, since = self._seen
        return content != _GIVEN_BACK.encode() and self._clock() - since < LEASE_S

    def _content(self) -> str:
        """The file's content, of the same length at every renewal."""
        return to_json({"host": self._host, "renewals": f"{self._renewals:012d}"}) + "\n"

    def _remove_old(self, number: int) -> None:
        for path in self._folder.iterdir():
            match = _FILE_NAME.fullmatch(path.name)
            if match and int(match[1]) <= number - _KEPT:
                path.unlink(missing_ok=True)


def newest_generation(folder: Path) -> int | None:
    """The highest number that was taken; OSError if the folder cannot be read, None if it is not there yet."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(match[1]) for name in names if (match := _FILE_NAME.fullmatch(name))), default=None)


def fence(run: RunFolder, generation: int) -> Callable[[], None]:
    """A check that raises TrainingError if generation `generation` no longer owns the run folder; 0 has no lease."""

    def check() -> None:
        newest = newest_generation(run.generations)
        if generation and newest != generation:
            raise TrainingError(
                f"generation {generation} has been replaced by {newest}, so it writes no checkpoints any more"
            )

    return check


def file_name(number: int) -> str:
    return f"{number:06d}.json"
