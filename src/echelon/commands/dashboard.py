"""`dashboard`: the page of all runs below some folders, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from echelon.commands.running import wait_for_interrupt
from echelon.commands.web import open_page
from echelon.errors import UserError
from echelon.runfolder import RUNS


def serve_dashboard(
    folders: Sequence[Path] | None,
    place: tuple[str, int],
    hourly: float | None,
    tell: Callable[[list[str]], None],
) -> None:
    """Serve at an address and port. UserError if a folder is missing; runs/ may come later."""
    if missing := [str(folder) for folder in folders or () if not folder.is_dir()]:
        raise UserError(f"{', '.join(missing)}: no such folder")
    with open_page(folders or [RUNS], *place, hourly) as addresses:
        tell(addresses)
        sys.stdout.flush()
        wait_for_interrupt()
