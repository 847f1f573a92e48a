"""Making the parts of a cluster one after the other, and removing them in the opposite order.

A part is written down before it is made. Where the answer of a provider was lost, or we were, `find` knows by the
part's tag whether it exists; so making can be taken up again, and removing repeated, from any point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from echelon.cloud.journal import Journal, PartRecord
from echelon.errors import CloudError, EchelonError

Tell = Callable[[str], None]
_POLL_S = 3.0


class Part(Protocol):
    """One thing to be made at a provider."""

    name: str

    def find(self) -> list[str]:
        """The identifiers of what exists, by its tag."""

    def make(self) -> list[str]:
        """Make what is missing of it, and return all identifiers; may be called again after any failure."""

    def remove(self, id_: str) -> None:
        """Remove one of them and return when it is gone; no error where it was gone already."""


@dataclass(frozen=True)
class Left:
    """Something that could not be removed."""

    part: str
    id: str
    why: str


def make_parts(parts: Sequence[Part], journal: Journal, tell: Tell) -> None:
    """Make all parts, or what is missing of them."""
    for part in parts:
        tell(f"{part.name} ...")
        record = _record(journal, part)
        journal.note(part.name, PartRecord("making", record.ids if record else ()))
        journal.note(part.name, PartRecord("made", tuple(part.make())))


def remove_parts(parts: Sequence[Part], journal: Journal, tell: Tell) -> list[Left]:
    """Remove all parts, the last that was made first; what could not be removed. Goes on after errors."""
    left: list[Left] = []
    for part in reversed(parts):
        try:
            found = part.find()
        except EchelonError as error:
            left.append(Left(part.name, "", str(error)))
            continue
        record = _record(journal, part)
        ids = list(dict.fromkeys([*(record.ids if record else ()), *found]))
        stuck = [problem for id_ in ids if (problem := _remove(part, id_, tell))]
        left += stuck
        journal.note(part.name, PartRecord("made", tuple(each.id for each in stuck)) if stuck else None)
    return left


def _record(journal: Journal, part: Part) -> PartRecord | None:
    cluster = journal.read()
    return cluster.parts.get(part.name) if cluster else None


def _remove(part: Part, id_: str, tell: Tell) -> Left | None:
    tell(f"removing {part.name} {id_} ...")
    try:
        part.remove(id_)
    except EchelonError as error:
        return Left(part.name, id_, str(error))
    return None


def wait_until(is_done: Callable[[], bool], what: str, limit_s: float) -> None:
    """Ask again and again; CloudError where it takes longer than `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > deadline:
            raise CloudError(
                f"{what} took longer than {limit_s / 60:.0f} minutes; try the same command again"
            )
        time.sleep(_POLL_S)
