"""The meter: every moment belongs to one phase, and measuring costs next to nothing."""

from __future__ import annotations

import itertools
import socket
import time

from echelon.monitor.interface_counters import (
    InterfaceCounter,
    open_counter,
    parse_interfaces,
    read_interfaces,
)
from echelon.monitor.meter import StepMeter

TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0
  eth0:987654321 77 0 0 0 0 0 0 123456789 66 0 0 0 0 0 0
"""


def test_the_phases_of_a_step_sum_to_the_wall_clock() -> None:
    before = time.perf_counter()
    meter = StepMeter()
    meter.take()
    started = time.perf_counter()
    for phase in ("data", "forward", "backward", "communication", "forward"):
        time.sleep(0.01)
        meter.lap(phase)
    time.sleep(0.01)
    ended = time.perf_counter()
    phases = meter.take()["phases"]
    after = time.perf_counter()
    rounding = 1e-6 * len(phases)
    assert ended - started - rounding <= sum(phases.values()) <= after - before + rounding
    assert list(phases) == ["data", "forward", "backward", "communication", "other"]
    assert phases["forward"] >= 0.0199, "it has had two of the naps"


def test_what_was_taken_is_not_counted_again() -> None:
    moments = itertools.count()
    meter = StepMeter(now=lambda: next(moments))
    meter.lap("forward")
    assert meter.take()["phases"] == {"forward": 1, "other": 1}
    meter.lap("backward")
    assert meter.take()["phases"] == {"backward": 1, "other": 1}


def test_moments_may_be_the_events_of_another_device() -> None:
    events = iter("abcd")
    meter = StepMeter(now=lambda: next(events), between=lambda start, end: (ord(end) - ord(start)) / 10)
    meter.lap("forward")
    meter.lap("backward")
    assert meter.take()["phases"] == {"forward": 0.1, "backward": 0.1, "other": 0.1}


def test_the_kernels_table_of_cards_is_read() -> None:
    assert parse_interfaces(TABLE) == {"lo": (1000, 2000), "eth0": (987654321, 123456789)}


def test_bytes_at_a_card_are_counted_between_two_questions() -> None:
    assert "lo" in read_interfaces()
    counter = open_counter("lo")
    assert isinstance(counter, InterfaceCounter)
    counter.take()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            sender.sendto(bytes(1000), ("127.0.0.1", 9))
    received, sent = counter.take()
    assert received >= 10_000
    assert sent >= 10_000
    assert open_counter("no-such-card") is None
