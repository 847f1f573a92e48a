"""`python -m echelon.run` and others: show what a command line of another system is today, and run that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from echelon.cli.output import fail, messages
from echelon.errors import EchelonError
from echelon.launch.site import find_place
from echelon.migrate.old_command import Modern


def main(translate: Callable[[list[str]], Modern]) -> NoReturn:
    """Print the modern command, then become it."""
    try:
        modern = translate(sys.argv[1:])
        place = find_place(os.environ)
    except EchelonError as error:
        fail(str(error), error.exit_status)
    if place is None or place.is_first:  # the others would say the same
        for line in [*(f"note: {note}" for note in modern.notes), f"today this is: {modern}"]:
            messages().print(line, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
    command = [sys.executable, "-P", "-m", "echelon", *modern.words]
    os.execve(sys.executable, command, {**os.environ, **modern.environ})
