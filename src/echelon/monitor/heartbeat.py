"""Heartbeats: how a launcher sees that its workers make progress, and which one hangs.

A worker beats from what it is doing, never from a thread of its own: after each part of its set-up, at each slot of
a step, at each batch it scores, and on entering and leaving each collective. A beat is three numbers in memory that
the launcher shares with its workers, which costs well under a microsecond and touches no disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

HEARTBEAT_VARIABLE = "ECHELON_HEARTBEAT_FD"
"""Environment variable with the descriptor of the shared memory and this worker's place in it, as `3:0`; a launcher
that does not watch leaves it out."""
_NUMBERS = struct.Struct("=QQQ")
"""One worker's numbers: its beats, the collectives it has entered and left, its step."""


class Heart:
    """A worker's side: beats into shared memory, or into nothing if no launcher watches."""

    def __init__(self, memory: mmap.mmap | bytearray | None = None, place: int = 0) -> None:
        self._memory = bytearray(_NUMBERS.size) if memory is None else memory
        self._offset = place * _NUMBERS.size if memory is not None else 0
        self._beats = 0
        self._turns = 0
        self._step = 0

    def beat(self, step: int | None = None) -> None:
        """Report progress; `step` is the current step, if it has changed."""
        if step is not None:
            self._step = step
        self._beats += 1
        _NUMBERS.pack_into(self._memory, self._offset, self._beats, self._turns, self._step)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Wraps a collective: inside, this worker waits for others and may be silent."""
        self._turns += 1
        self.beat()
        try:
            yield
        finally:
            self._turns += 1
            self.beat()


def open_heart() -> Heart:
    """This process's heart, as its launcher set it up."""
    value = os.environ.get(HEARTBEAT_VARIABLE)
    if value is None:
        return Heart()
    descriptor, place = map(int, value.split(":"))
    try:
        return Heart(mmap.mmap(descriptor, 0), place)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Pulse:
    """A worker's heartbeat as the launcher reads it."""

    beats: int
    turns: int
    """Collectives entered and left: odd inside one, and lowest for the worker that is farthest behind."""
    step: int
    silent_s: float
    """Seconds since its last beat, or since it was started."""
    is_stopped: bool = False
    """Whether it is stopped, by SIGSTOP or a debugger."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for others: its silence is then theirs."""
        return self.turns % 2 == 1 and not self.is_stopped


class Heartbeats:
    """The launcher's side: the memory, and when each worker's part of it last changed."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.descriptor = _make_memory(workers * _NUMBERS.size)
        self._memory = mmap.mmap(self.descriptor, 0)
        self._seen = [(0, clock())] * workers

    def read(self) -> list[Pulse]:
        """All workers' pulses now, by rank."""
        now, pulses = self._clock(), []
        for rank, (seen, changed) in enumerate(self._seen):
            beats, turns, step = _NUMBERS.unpack_from(self._memory, rank * _NUMBERS.size)
            since = now if beats != seen else changed
            self._seen[rank] = (beats, since)
            pulses.append(Pulse(beats, turns, step, now - since))
        return pulses

    @property
    def size(self) -> int:
        """The number of workers that there is room for."""
        return len(self._seen)

    def clear(self, place: int) -> None:
        """Forget a worker: another one is started in its place."""
        _NUMBERS.pack_into(self._memory, place * _NUMBERS.size, 0, 0, 0)
        self._seen[place] = (0, self._clock())

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


def find_hung(
    pulses: Mapping[int, Pulse], hang_s: float, start_s: float, *, is_whole_group: bool = True
) -> int | None:
    """The rank of the worker that hangs, or None; `pulses` are those of running workers, by rank.

    A worker hangs when it was silent for `hang_s` without waiting for others, one that is stopped first of all; before
    its first step it imports libraries and opens data, and has at least `start_s`. If all of a group are silent and
    all wait, the one farthest behind hangs; if only a part is seen, they may well wait for one of the others.
    """
    silent = [
        rank
        for rank, pulse in pulses.items()
        if pulse.silent_s > (hang_s if pulse.step else max(hang_s, start_s))
    ]
    at_work = [rank for rank in silent if not pulses[rank].is_waiting]
    if not at_work and (not is_whole_group or len(silent) < len(pulses)):
        return None

    def blame(rank: int) -> tuple[bool, int, float]:
        pulse = pulses[rank]
        return not pulse.is_stopped, pulse.turns, -pulse.silent_s

    return min(at_work or silent, key=blame, default=None)


def _make_memory(size: int) -> int:
    """A descriptor of shared memory without a file name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("echelon-heartbeats")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
