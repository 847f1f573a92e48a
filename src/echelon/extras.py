"""Packages that only some verbs need, imported when they are needed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from echelon.errors import UserError


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a package; UserError that names the extra where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"this needs {module}; `pip install 'echelon[{extra}]'` installs it") from error


def has_module(module: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(module) is not None
