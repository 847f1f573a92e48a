"""Makes the parts of a cluster in order, and removes them in the opposite order.

A part is written down before it is made, under a name or a token with which making it twice makes it once. So making
can be taken up again, and removing repeated, from any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from echelon.cloud.journal import Journal, PartRecord
from echelon.console import Tell
from echelon.errors import EchelonError


class Part(Protocol):
    """A resource to be made at a provider."""

    name: str

    def find(self) -> list[str]:
        """The identifiers of what exists, by its tag.

        If it is not known whether it was made, the provider is asked until it must know.
        """

    def make(self) -> None:
        """Make what is missing of it, and record it; may be called again after any failure."""

    def remove(self, id_: str) -> None:
        """Remove one of them and return when it is gone; no error if it was gone already."""


@dataclass(frozen=True)
class Left:
    """Something that could not be removed."""

    part: str
    id: str
    why: str


def make_parts(parts: Sequence[Part], tell: Tell) -> None:
    """Make all parts that are missing."""
    for part in parts:
        tell(f"{part.name} ...")
        part.make()


def remove_parts(parts: Sequence[Part], journal: Journal, tell: Tell, why: str = "") -> list[Left]:
    """Tell `why`, remove all parts, newest first, and return what is left. Continues after errors.

    If the user interrupts it, all that is still written down is left.
    """
    left, remaining = list[Left](), list(parts)
    try:
        if why:
            tell(why)
        while remaining:
            left += remove_part(remaining[-1], journal, tell)
            remaining.pop()
    except KeyboardInterrupt:
        left += [each for part in reversed(remaining) for each in _not_looked_for(part, journal)]
    return left


def remove_part(part: Part, journal: Journal, tell: Tell) -> list[Left]:
    """Remove one part, by journal and by tags; return what could not be removed."""
    record = journal.record(part.name) or PartRecord()
    try:
        found = part.find()
    except EchelonError as error:
        return [Left(part.name, id_, str(error)) for id_ in _ids(record) or [""]]
    ids = dict.fromkeys([*_ids(record), *found])
    stuck = [problem for id_ in ids if (problem := _remove(part, id_, tell))]
    kept = tuple(each.id for each in stuck)
    journal.note(part.name, replace(record, ids=kept, order="") if stuck else None)
    return stuck


def _ids(record: PartRecord) -> list[str]:
    return [id_ for id_ in record.ids if id_]


def _not_looked_for(part: Part, journal: Journal) -> list[Left]:
    record = journal.record(part.name)
    if record is None:
        return [] if journal.read() else [Left(part.name, "", "interrupted before it was looked for")]
    unknown = [Left(part.name, "", "it is not known what was made")] if record.is_unsure else []
    return [*(Left(part.name, id_, "interrupted") for id_ in _ids(record)), *unknown]


def _remove(part: Part, id_: str, tell: Tell) -> Left | None:
    tell(f"removing {part.name} {id_} ...")
    try:
        part.remove(id_)
    except EchelonError as error:
        return Left(part.name, id_, str(error))
    return None
