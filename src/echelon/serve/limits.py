"""Limits on what a client may request, and how often."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

PICTURE_BYTES = 16 << 20
"""Of a request to a classifier, in place of `body_bytes`; 413 beyond."""
PICTURE_PIXELS = 50_000_000
"""Of a picture, however few bytes it takes; 413 beyond."""
_REMEMBERED_CLIENTS = 10_000


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused with a 4xx or 503 that says so."""

    body_bytes: int = 1 << 20
    """413 beyond."""
    characters: int = 50_000
    """Of all lines of a request; 413 beyond."""
    alignment_characters: int = 1000
    """Of a request that asks for alignments, which grow with the square of a line; beyond, none are given."""
    lines: int = 256
    """Of a request; 422 beyond."""
    queue_lines: int = 2048
    """Lines of all requests that may wait; 503 beyond."""
    client_lines: int = 1024
    """Of these, of one client; 503 beyond."""
    requests_per_second: float = 50.0
    """Of one client, on average; 429 beyond."""
    burst: int = 200
    """Requests that a client may send at once."""
    receive_s: float = 10.0
    """For a request to arrive whole; 408 beyond."""
    answer_s: float = 60.0
    """For its answer; 504 beyond."""
    connections: int = 1024
    """At a time; 503 beyond."""
    client_connections: int = 128
    """Of one address; closed at once beyond."""
    held_bytes: int = 128 << 20
    """Of the bodies of all requests under way; 503 beyond."""
    send_s: float = 30.0
    """For a client to take what it is sent; its connection is closed beyond."""

    @property
    def rate(self) -> tuple[float, float]:
        """One client's limits: requests per second on average, and in a burst."""
        return self.requests_per_second, self.burst


class ByteBudget:
    """Bytes that all requests in progress may hold together. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.held = 0
        self._most = limits.held_bytes

    def has_room(self, count: int) -> bool:
        """Whether that many more bytes would fit."""
        return self.held + count <= self._most


class RateLimiter:
    """A token bucket for each client or token: it holds `burst` requests and refills at the allowed rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, key: str, per_second: float, burst: float) -> float:
        """0 if the request is accepted, which counts it; otherwise the seconds until a retry."""
        now = self._clock()
        level, since = self._buckets.pop(key, (burst, now))
        level = min(burst, level + (now - since) * per_second)
        wait = 0.0 if level >= 1 else (1 - level) / per_second
        self._buckets[key] = (level if wait else level - 1, now)
        if len(self._buckets) > _REMEMBERED_CLIENTS:
            self._buckets.popitem(last=False)
        return wait
