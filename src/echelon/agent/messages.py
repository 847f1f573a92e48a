"""Heartbeats as the messages of a connection, which leave out what the other end knows.

A heartbeat is repeated again and again, and little of it changes. Connections lose and reorder nothing (wire.py), so
the whole is sent only if it has changed; otherwise an empty message says that the agent is at work. Only the leader is
told how far the workers are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from pydantic import TypeAdapter

from echelon.agent.generation import Heartbeat, Pulses, dump_heartbeat, parse_heartbeat

_WHOLE, _PULSES, _REPEATED = b"H", b"P", b""
_PULSES_JSON = TypeAdapter(Pulses)


class Announcement:
    """What an agent tells the others, written once for all of them."""

    def __init__(self, heartbeat: Heartbeat, before: Announcement | None = None) -> None:
        whole = replace(heartbeat, pulses={})
        self.heartbeat: Heartbeat = before.heartbeat if before and before.heartbeat == whole else whole
        """Without pulses, and the same object as before if nothing has changed."""
        self._pulses = heartbeat.pulses

    @cached_property
    def whole(self) -> bytes:
        return _WHOLE + dump_heartbeat(self.heartbeat)

    @cached_property
    def pulses(self) -> bytes:
        return _PULSES + _PULSES_JSON.dump_json(self._pulses)

    def is_for_leader(self, host: int) -> bool:
        generation = self.heartbeat.generation
        return bool(self._pulses) and generation is not None and generation.leader == host


class Link:
    """Sends to one other agent, and remembers what it has been sent. `write` sends a message."""

    def __init__(self, host: int, write: Callable[[bytes], None]) -> None:
        self._host, self._write = host, write
        self._known: Heartbeat | None = None

    def tell(self, news: Announcement) -> None:
        if self._known is not news.heartbeat:
            self._known = news.heartbeat
            self._write(news.whole)
        self._write(news.pulses if news.is_for_leader(self._host) else _REPEATED)


class HeartbeatReader:
    """Puts the heartbeats of one connection together again."""

    def __init__(self, num_hosts: int) -> None:
        self._num_hosts = num_hosts
        self._heartbeat: Heartbeat | None = None

    def read(self, message: bytes) -> Heartbeat:
        """Return what the other end says now; ValueError for anything that `Link` does not write."""
        kind, content = message[:1], message[1:]
        if kind == _WHOLE:
            self._heartbeat = parse_heartbeat(content, self._num_hosts)
        elif self._heartbeat is None:
            raise ValueError("a heartbeat that was not begun")
        elif kind == _PULSES:
            self._heartbeat = replace(self._heartbeat, pulses=_PULSES_JSON.validate_json(content))
        elif kind != _REPEATED:
            raise ValueError("no heartbeat")
        return self._heartbeat
