"""What hosts have in common with the machine they run on: programs, libraries, settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import echelon

_PASSED_ON = ("LANG", "ECHELON_DATA", "ECHELON_CACHE")


@dataclass(frozen=True)
class Surroundings:
    """The environment of every login on a host, and the folders that programs there need."""

    environment: dict[str, str]
    visible: list[Path]


def find_surroundings(environ: Mapping[str, str] = os.environ) -> Surroundings:
    """This process's variables, with this Python first on the PATH and a development tree on PYTHONPATH."""
    here = Path(sys.executable).parent
    environment = {"PATH": f"{here}:{environ.get('PATH', os.defpath)}"}
    imported = [str(Path(entry).resolve()) for entry in environ.get("PYTHONPATH", "").split(":") if entry]
    if imported:
        environment["PYTHONPATH"] = ":".join(imported)
    environment |= {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    package = str(Path(echelon.__file__).resolve().parents[1])
    candidates = [sys.prefix, sys.base_prefix, package, *imported, environ.get("ECHELON_DATA", "")]
    visible = dict.fromkeys(Path(folder) for folder in candidates if folder and Path(folder).is_dir())
    return Surroundings(environment, list(visible))
