"""Keys pressed while output is shown, read without Enter and without echo."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def reading_keys() -> Iterator[Callable[[], str]]:
    """Yield a function that returns the keys pressed since its last call; Ctrl-C stays a signal.

    None are read if stdin is not a terminal, or is another job's.
    """
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield lambda: ""
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda: _pressed(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int) -> str:
    if not select.select([terminal], [], [], 0)[0]:
        return ""
    return os.read(terminal, 1024).decode(errors="replace")
