"""Marks that hosts leave in a run folder, to find out which of them see the same one."""

from __future__ import annotations

import re

from echelon.errors import RunError
from echelon.runfolder import RunFolder

_PREFIX = ".mark-"


def leave_mark(run: RunFolder, mark: str) -> list[str]:
    """Leave a mark in the run folder, which is made where it is missing."""
    _check(mark)
    run.create()
    (run.path / f"{_PREFIX}{mark}").touch(exist_ok=False)
    return [mark]


def list_marks(run: RunFolder, prefix: str) -> list[str]:
    """The marks whose names begin so."""
    _check(prefix)
    return sorted(path.name.removeprefix(_PREFIX) for path in run.path.glob(f"{_PREFIX}{prefix}*"))


def remove_marks(run: RunFolder, prefix: str) -> list[str]:
    """Remove the marks whose names begin so."""
    _check(prefix)
    for path in run.path.glob(f"{_PREFIX}{prefix}*"):
        path.unlink(missing_ok=True)
    return []


def _check(mark: str) -> None:
    if not re.fullmatch("[0-9a-f]{16}(-[0-9]+)?", mark):
        raise RunError(f"{mark!r} is not a mark")


MARKING = {"mark": leave_mark, "marks": list_marks, "unmark": remove_marks}
