"""Requests to stop, from signals or calls: the first asks workers to save and leave, a later one kills them."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Literal

_SAME_STOP_S = 1.0
"""Two signals within this time are one: `timeout` and others send theirs to the process and to its group."""


class StopRequests:
    """Requests to save and leave: one asks, another, a while later, insists. Signal handlers may call `ask`."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.must_kill = False
        self.is_pause = False
        """Save and leave to be started again at once. A request of the user's takes precedence."""
        self._is_told = False

    def news(self) -> str | None:
        """The message about the first request; returned once."""
        if self.since is None or self._is_told:
            return None
        self._is_told = True
        return "stopping: the workers finish their step and save it; Ctrl-C again ends them without saving"

    @property
    def is_set(self) -> bool:
        return self.since is not None

    @property
    def level(self) -> Literal[0, 1, 2]:
        """0: no stop was requested; 1: save and leave; 2: end at once."""
        if self.since is None:
            return 1 if self.is_pause else 0
        return 2 if self.must_kill else 1

    def insist(self) -> None:
        self.since = self.since or time.monotonic()
        self.must_kill = True

    def ask(self) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since > _SAME_STOP_S:
            self.must_kill = True


@contextlib.contextmanager
def signals_call(
    action: Callable[[], None],
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
) -> Iterator[None]:
    """Turn signals into a call of `action`; in a thread that is not the main one, which gets none, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(_number: int, _frame: FrameType | None) -> None:
        action()

    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
