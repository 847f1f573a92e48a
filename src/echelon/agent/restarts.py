"""When workers that failed are started again, and when the failure stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Restart:
    """Start the workers again."""

    number: int
    """Which restart within the window this is."""


@dataclass(frozen=True)
class GiveUp:
    """Let the failure stand."""

    restarts: int
    """How many restarts were tried within the window."""


@dataclass(frozen=True)
class RestartPolicy:
    """At most `max_restarts` restarts within any `window_s` seconds."""

    max_restarts: int
    window_s: float

    def decide(self, failed_at: Sequence[float], now_s: float, *, is_final: bool) -> Restart | GiveUp:
        """Return what to do after the last of these failures; every earlier one was followed by a restart.

        `is_final`: no restart can help, as after the user's mistake, or if training cannot continue.
        """
        restarts = sum(now_s - time_s < self.window_s for time_s in failed_at[:-1])
        if is_final or restarts >= self.max_restarts:
            return GiveUp(restarts)
        return Restart(restarts + 1)

    def describe(self, tried: GiveUp) -> str:
        """For an error: ` after 2 restarts within 60 minutes`; empty if none was tried."""
        if not tried.restarts:
            return ""
        return f" after {format_count(tried.restarts, 'restart')} within {self.window_s / 60:g} minutes"


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
