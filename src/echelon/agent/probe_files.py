"""Probe files that hosts leave in a run folder, to find out which of them see the same folder."""

from __future__ import annotations

import re

from echelon.errors import RunError
from echelon.runfolder import RunFolder

_PREFIX = ".probe-"


def leave_probe(run: RunFolder, name: str) -> list[str]:
    """Leave a probe file in the run folder; the folder is made if it is missing."""
    _require_probe_name(name)
    run.create()
    (run.path / f"{_PREFIX}{name}").touch(exist_ok=False)
    return [name]


def list_probes(run: RunFolder, prefix: str) -> list[str]:
    """Return the probe files whose names begin with `prefix`."""
    _require_probe_name(prefix)
    return sorted(path.name.removeprefix(_PREFIX) for path in run.path.glob(f"{_PREFIX}{prefix}*"))


def remove_probes(run: RunFolder, prefix: str) -> list[str]:
    """Remove the probe files whose names begin with `prefix`."""
    _require_probe_name(prefix)
    for path in run.path.glob(f"{_PREFIX}{prefix}*"):
        path.unlink(missing_ok=True)
    return []


def _require_probe_name(name: str) -> None:
    if not re.fullmatch("[0-9a-f]{16}(-[0-9]+)?", name):
        raise RunError(f"{name!r} is not the name of a probe file")


PROBE_VERBS = {"leave-probe": leave_probe, "list-probes": list_probes, "remove-probes": remove_probes}
