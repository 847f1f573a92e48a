"""Connections of a fixed group, which carry the agents' wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from echelon.agent.connection import Answering, Connection, connect, introduce
from echelon.agent.wire import NONCE_BYTES, Handshake, MessageEncoder
from echelon.launch.local import listen
from echelon.launch.site import Address
from tests.waiting import NEVER_S, wait_until

SECRET = b"secret"


def make_pair() -> tuple[Connection, Connection]:
    """The ends of a connection, the caller's first, before the handshake."""
    with listen("127.0.0.1") as listener:
        connection = connect(Address(*listener.getsockname()))
        assert connection is not None
        return connection, Connection(listener.accept()[0])


def shake_hands(caller: Connection, called: Connection, theirs: bytes = SECRET) -> bool:
    """Whether the caller, which takes `theirs` for the secret, was let in."""
    answering = Answering(called, SECRET)

    def wait(is_so: Callable[[], bool]) -> None:
        while not is_so() and not caller.is_closed:
            called.wait_until(lambda: True, 0.0)
            called.read()
            if not called.is_closed:
                answering.proceed()
            caller.read()

    is_let_in = introduce(caller, theirs, 3, wait)
    assert answering.caller == (3 if is_let_in else None)
    return is_let_in


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    caller, called = make_pair()
    assert shake_hands(caller, called)
    called.allow_long_messages()
    yield caller, called
    caller.release()
    called.release()


def test_messages_go_both_ways_in_order(ends: tuple[Connection, Connection]) -> None:
    caller, called = ends
    for connection, other in (ends, ends[::-1]):
        for number in range(3):
            connection.send("count", number=number, text="zwei\nZeilen")
        for number in range(3):
            assert other.wait(NEVER_S) == {"kind": "count", "number": number, "text": "zwei\nZeilen"}
    assert caller.wait(0.05) is None
    assert not caller.is_closed
    assert not called.is_closed


def test_a_message_before_the_end_is_still_read(ends: tuple[Connection, Connection]) -> None:
    caller, called = ends
    called.send("last")
    called.close()
    assert caller.wait(NEVER_S) == {"kind": "last"}
    assert caller.wait(NEVER_S) is None
    assert caller.is_closed


def test_sending_to_nobody_closes_the_link(ends: tuple[Connection, Connection]) -> None:
    caller, called = ends
    called.release()

    def send() -> bool:  # the first may still go out
        caller.send("hello")
        return caller.is_closed

    wait_until(send)


def test_another_secret_is_sent_away() -> None:
    caller, called = make_pair()
    assert not shake_hands(caller, called, b"another")
    assert called.is_closed
    caller.release()
    called.release()


def test_a_recorded_introduction_cannot_be_used_again() -> None:
    nonce = os.urandom(NONCE_BYTES)
    recorded = Handshake.call(SECRET, 3, 0, nonce).introduce()
    caller, called = make_pair()
    answering = Answering(called, SECRET)
    caller.send_handshake(recorded)

    def is_closed() -> bool:
        called.read()
        answering.proceed()
        return called.is_closed

    wait_until(is_closed)
    assert answering.caller is None
    caller.release()
    called.release()


CONTENTS = [
    b"",
    b"[1]",
    b'{"kind": 1}',
    b'{"no": "kind"}',
    b"\xff\xfe",
    b'{"kind": "hello", "secret": "\\ud800"}',
    b'{"kind": "hello", "secret": "\xed\xa0\x80"}',
    b"[" * 4000,
    b"x" * 5000,
]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: repr(content[:20]))
def test_what_is_no_message_closes_the_link_though_it_is_authentic(content: bytes) -> None:
    caller, called = make_pair()
    key = os.urandom(32)
    called.begin(key, key)
    caller.send_handshake(MessageEncoder(key).encode(content))
    assert called.wait(NEVER_S) is None
    assert called.is_closed
    caller.release()
    called.release()


def test_what_is_not_authentic_closes_the_link(ends: tuple[Connection, Connection]) -> None:
    caller, called = ends
    caller.send_handshake(MessageEncoder(os.urandom(32)).encode(b'{"kind": "hello"}'))
    assert called.wait(NEVER_S) is None
    assert called.is_closed


def test_nobody_answers_where_nobody_listens() -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    assert connect(Address("127.0.0.1", port)) is None
    assert connect(Address("nowhere.invalid", 1)) is None
