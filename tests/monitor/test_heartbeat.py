"""Heartbeats: what workers say of themselves, and whom that blames."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from echelon.monitor.heartbeat import HEARTBEAT_VARIABLE, Heart, Heartbeats, Pulse, find_hung, open_heart

START_S = 100.0


def pulse(silent_s: float, turns: int = 0, step: int = 3, *, is_stopped: bool = False) -> Pulse:
    return Pulse(beats=5, turns=turns, step=step, silent_s=silent_s, is_stopped=is_stopped)


@pytest.mark.parametrize(
    ("pulses", "hung"),
    [
        ([pulse(9), pulse(9)], None),
        ([pulse(9, turns=7), pulse(11, turns=6)], 1),
        ([pulse(11, turns=7), pulse(9, turns=6)], None),
        ([pulse(11, turns=7), pulse(11, turns=6)], 1),
        ([pulse(11, turns=8), pulse(12, turns=8), pulse(13, turns=6)], 2),
        ([pulse(11, turns=8), pulse(12, turns=8)], 1),
        ([pulse(11, turns=7), pulse(12, turns=5)], 1),
        ([pulse(12, turns=7), pulse(11, turns=7, is_stopped=True)], 1),
        ([pulse(12, turns=6), pulse(11, turns=7, is_stopped=True)], 1),
        ([pulse(99, turns=1), pulse(99, step=0)], None),
        ([pulse(101, turns=1), pulse(101, step=0)], 1),
        ([], None),
    ],
    ids=[
        "all get on",
        "one works in silence",
        "one waits for another that gets on",
        "one waits, the other hangs",
        "the one farthest behind",
        "side by side: the one silent for longest",
        "all wait: the one farthest behind",
        "all wait: the one that was stopped",
        "one works in silence, another was stopped",
        "importing",
        "importing for too long",
        "nobody is there",
    ],
)
def test_the_worker_that_hangs_is_found(pulses: list[Pulse], hung: int | None) -> None:
    assert find_hung(dict(enumerate(pulses)), 10.0, START_S) == hung


def test_the_launcher_reads_what_workers_beat() -> None:
    now = 0.0
    heartbeats = Heartbeats(2, clock=lambda: now)
    environment = {**os.environ, HEARTBEAT_VARIABLE: f"{heartbeats.descriptor}:1"}
    beating = """
import os
from echelon.monitor.heartbeat import open_heart
heart = open_heart()
heart.beat(41)
with heart.waiting(): pass
heart.beat(42)
with heart.waiting(): os._exit(0)
"""

    def beat() -> None:
        subprocess.run(
            [sys.executable, "-c", beating], env=environment, pass_fds=[heartbeats.descriptor], check=True
        )

    beat()
    now = 3.0
    assert heartbeats.read() == [Pulse(0, 0, 0, 3.0), Pulse(5, 3, 42, 0.0)]
    now = 5.0
    silent, waiting = heartbeats.read()
    assert (silent.silent_s, waiting.silent_s, waiting.is_waiting) == (5.0, 2.0, True)
    heartbeats.close()


def test_a_worker_that_nobody_watches_beats_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    heart = open_heart()
    assert isinstance(heart, Heart)
    with heart.waiting():
        heart.beat(1)
