"""Packages that only some verbs need, imported when they are needed."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from echelon.errors import UserError

DISTRIBUTION = "echelon-train"
"""What pip calls Echelon: the name `echelon` in the package registry belongs to another project."""
_MAKEFILE = Path(__file__).parents[2] / "Makefile"
"""The checkout's Makefile; an installed package has none there."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra; in a checkout, `make setup` installs them all."""
    return "make setup" if _MAKEFILE.is_file() else f"pip install '{DISTRIBUTION}[{extra}]'"


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a package; UserError that names the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this needs {module} (extra {extra}); `{install_hint(extra)}` installs it"
        ) from error


def has_module(module: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(module) is not None
