"""Packages that only some verbs need, imported when they are needed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from echelon.errors import UserError

DISTRIBUTION = "echelon-train"
"""What pip calls Echelon: the name `echelon` in the package registry belongs to another project."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a package; UserError that names the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"this needs {module}; `{install_hint(extra)}` installs it") from error


def has_module(module: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(module) is not None
