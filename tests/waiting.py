"""Waiting in tests. pytest's --timeout is the one limit: another one would be reached first on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

NEVER_S = 3600.0
"""For limits of the product that a test must not reach: longer than pytest lets a test last."""


def wait_until(is_so: Callable[[], object], describe: Callable[[], object] | None = None) -> None:
    """Return once `is_so`; if pytest ends the test before that, its report has what `describe` returns."""
    try:
        while not is_so():
            time.sleep(0.02)
    except BaseException:
        if describe is not None:
            print(describe())
        raise
