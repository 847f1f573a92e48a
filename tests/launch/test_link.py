"""Connections that carry a JSON object a line, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from echelon.launch.link import Link, call
from echelon.launch.local import listen
from echelon.launch.site import Address
from tests.waiting import NEVER_S


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    """A link and the raw other end of it."""
    with listen("127.0.0.1") as listener:
        link = call(Address(*listener.getsockname()))
        other, _ = listener.accept()
    assert link is not None
    with other:
        yield link, other
    link.release()


def test_messages_come_in_order_however_they_are_cut(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.sendall(b'{"kind": "one"}\n{"kind": "tw')
    assert link.wait(NEVER_S) == {"kind": "one"}
    assert link.wait(0.05) is None
    assert not link.is_closed
    other.sendall(b'o", "value": [1, null]}\n')
    assert link.wait(NEVER_S) == {"kind": "two", "value": [1, None]}


def test_what_is_sent_is_a_line(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    link.send("hello", text="zwei\nZeilen", number=float("inf"))
    assert other.recv(1000) == b'{"kind": "hello", "text": "zwei\\nZeilen", "number": null}\n'


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\n",
        b"[1]\n",
        b'{"kind": 1}\n',
        b'{"no": "kind"}\n',
        b"\xff\xfe\n",
        b'{"kind": "hello", "secret": "\\ud800"}\n',
        b'{"kind": "hello", "secret": "\xed\xa0\x80"}\n',
        b"[" * 9999,
    ],
)
def test_what_is_no_message_closes_the_link(ends: tuple[Link, socket.socket], garbage: bytes) -> None:
    link, other = ends
    link.limit_bytes = 4096
    other.sendall(garbage)
    assert link.wait(NEVER_S) is None
    assert link.is_closed


def test_a_message_before_the_end_is_still_read(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.sendall(b'{"kind": "last"}\n')
    other.close()
    assert link.wait(NEVER_S) == {"kind": "last"}
    assert link.wait(NEVER_S) is None
    assert link.is_closed


def test_sending_to_nobody_closes_the_link(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.close()
    for _ in range(3):  # the first may still go out
        link.send("hello")
    assert link.is_closed


def test_nobody_answers_where_nobody_listens() -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    assert call(Address("127.0.0.1", port)) is None
    assert call(Address("nowhere.invalid", 1)) is None
