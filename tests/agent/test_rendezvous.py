"""Processes that find each other, on real sockets: who is let in, and who is not."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from echelon.agent import rendezvous
from echelon.agent.connection import Connection, connect, introduce
from echelon.agent.rendezvous import Hello, Participant, Rendezvous, join, read_secret
from echelon.agent.rendezvous_file import Invitation
from echelon.agent.wire import NONCE_BYTES, Handshake, MessageEncoder
from echelon.commands.site_training import agree_on_folder
from echelon.errors import EchelonError, RefusedError, StoppedError, TrainingError, UserError
from echelon.launch.local import listen
from echelon.launch.site import Address, Place
from tests.waiting import NEVER_S, wait_until

OWN = Hello(0, 3, 1, "recipe", "host0", "versions")
PLACE = Place("by hand", 0, 2, is_host=True)


def silent(_message: str) -> None:
    pass


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1") as listener:
        yield listener


@pytest.fixture(autouse=True)
def connections_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In earnest they last as long as their process: by their end, the others see that it has left."""
    connections: list[Connection] = []

    def note(connection: Connection, *arguments: Any) -> None:
        original(connection, *arguments)
        connections.append(connection)

    original = Connection.__init__
    monkeypatch.setattr(Connection, "__init__", note)
    yield
    for connection in connections:
        connection.release()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_LEAVE_S", 0.05)


class Company:
    """Process 0 on a listener, and others that join it from threads."""

    def __init__(self, listener: socket.socket, pool: ThreadPoolExecutor, own: Hello = OWN) -> None:
        self.address = Address(*listener.getsockname())
        self.first = Rendezvous(listener, own, "process", "secret")
        self._pool = pool

    def join(self, rank: int, **changes: Any) -> Future[Participant]:
        hello = replace(OWN, rank=rank, host=f"host{rank}", **changes)
        invitation = Invitation(self.address, "secret")
        return self._pool.submit(join, lambda: invitation, hello, "process", silent, 20.0)

    def gathered(self, *ranks: int) -> dict[int, Participant]:
        """Everybody, with what they were told first."""
        joining = {rank: self.join(rank) for rank in ranks}
        self.first.gather(silent, limit_s=20.0)
        self.first.tell_all("prepare")
        members = {rank: future.result() for rank, future in joining.items()}
        for member in members.values():
            member.hear("prepare")
        return members


@pytest.fixture
def company(listener: socket.socket, pool: ThreadPoolExecutor) -> Company:
    return Company(listener, pool)


def test_all_meet_get_ready_and_begin(company: Company, pool: ThreadPoolExecutor) -> None:
    members = company.gathered(2, 1)
    assert {rank: hello.host for rank, hello in company.first.hellos.items()} == {
        0: "host0",
        1: "host1",
        2: "host2",
    }
    asking = pool.submit(company.first.ask_all, "ready?", data=[1])
    for rank, member in members.items():
        assert member.hear("ready?") == {"kind": "ready?", "data": [1]}
        member.say("ready", mine=rank)
    assert {rank: answer["mine"] for rank, answer in asking.result().items()} == {1: 1, 2: 2}
    company.first.connections[2].send("begin", first_rank=2)
    assert members[2].hear("begin")["first_rank"] == 2


def introduction(secret: bytes, nonce: bytes, rank: int = 1) -> bytes:
    return Handshake.call(secret, rank, 0, nonce).introduce()


def test_strangers_get_nowhere_and_disturb_nobody(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_HELLO_S", 0.2)
    told: list[str] = []
    sent: list[bytes] = [
        b"",
        b"\n",
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(67),
        os.urandom(4000),
        b"{" * 100_000,
        json.dumps({"kind": "hello", **asdict(replace(OWN, rank=1))}).encode(),
        introduction(b"another secret", bytes(32)),
        introduction(b"", bytes(32)),
        introduction(b"secret", bytes(32)),  # for another challenge
    ]
    strangers = [socket.create_connection((company.address.host, company.address.port)) for _ in sent]
    for stranger, data in zip(strangers, sent, strict=True):
        stranger.sendall(data)
    stop = threading.Event()

    def scan() -> None:
        while not stop.wait(0.001):
            connection = connect(company.address)
            if connection:
                connection.release()

    scanner = threading.Thread(target=scan)
    scanner.start()
    joining = [company.join(rank) for rank in (1, 2)]
    try:
        company.first.gather(told.append, limit_s=NEVER_S)
    finally:
        stop.set()
        scanner.join()
    company.first.tell_all("prepare")
    assert [future.result().hear("prepare")["kind"] for future in joining] == ["prepare", "prepare"]
    assert told in ([], ["waiting for processes 1, 2 ..."])
    for stranger in strangers:
        stranger.settimeout(20)
        with stranger, contextlib.suppress(ConnectionResetError):
            assert len(read_all(stranger)) in (0, NONCE_BYTES), "more than a challenge"


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1000), b""))


def test_the_secret_is_never_sent(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    """Between the two stands somebody who passes everything on, and reads it."""
    company = Company(listener, pool, replace(OWN, size=2))
    heard = bytearray()
    with listen("127.0.0.1") as tap:
        invitation = Invitation(Address(*tap.getsockname()), "secret")
        hello = replace(OWN, rank=1, size=2)
        joining = pool.submit(join, lambda: invitation, hello, "process", silent, 20.0)
        caller, _ = tap.accept()
        called = socket.create_connection((company.address.host, company.address.port))
        with caller, called:
            for one, other in ((caller, called), (called, caller)):
                pool.submit(pass_on, one, other, heard)
            company.first.gather(silent, limit_s=20.0)
            company.first.tell_all("prepare")
            assert joining.result().hear("prepare")
            for one in (caller, called):
                one.shutdown(socket.SHUT_RDWR)
    assert b'"prepare"' in heard
    assert b"secret" not in heard


def pass_on(one: socket.socket, other: socket.socket, heard: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(4096):
            heard.extend(data)
            other.sendall(data)


def test_a_hello_cannot_be_used_again(company: Company, pool: ThreadPoolExecutor) -> None:
    """Every connection has its own challenge, and the proof is about it."""
    gathering = pool.submit(company.first.gather, silent, NEVER_S)
    with socket.create_connection((company.address.host, company.address.port)) as again:
        again.sendall(introduction(b"secret", b"an earlier challenge".ljust(32)))
        again.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert len(read_all(again)) in (0, NONCE_BYTES)
    joining = [company.join(rank) for rank in (1, 2)]
    gathering.result()
    company.first.tell_all("prepare")
    assert all(future.result() for future in joining)


def test_who_calls_is_not_led_by_somebody_who_does_not_know_the_secret(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    """It is told to go on with whatever; what it hears is no welcome from process 0."""
    with listen("127.0.0.1") as impostor:
        invitation = Invitation(Address(*impostor.getsockname()), "secret")
        joining = pool.submit(join, lambda: invitation, replace(OWN, rank=1), "process", silent, 0.2)
        connection, _ = impostor.accept()
        impostor.close()
        with connection:
            connection.sendall(bytes(NONCE_BYTES) + bytes(32) + b'{"kind": "prepare"}')
            with pytest.raises(UserError, match="process 0 did not answer"):
                joining.result()


@pytest.mark.parametrize("host", ["\x1b[2J", "a\nb", "\x9b2J", "a\u202eb", "h" * 400])
def test_a_host_whose_name_would_write_on_the_terminal_is_refused(
    company: Company, pool: ThreadPoolExecutor, host: str
) -> None:
    hello = replace(OWN, rank=1, host=host)
    invitation = Invitation(company.address, "secret")
    refused = pool.submit(join, lambda: invitation, hello, "process", silent, 0.3)
    told: list[str] = []
    with pytest.raises(UserError):
        company.first.gather(told.append, limit_s=1.0)
    assert set(company.first.hellos) == {0}
    assert not any("turned away" in line for line in told)
    company.first.refuse(UserError("over"), wait_s=0.0)
    with pytest.raises(UserError):
        refused.result()


def test_whoever_is_turned_away_again_and_again_is_told_of_a_few_times(
    company: Company, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_MOST_TOLD", 3)
    invitation = Invitation(company.address, "secret")
    hellos = [replace(OWN, rank=1, recipe=f"another {number}") for number in range(6)]
    hellos.append(replace(OWN, rank=1, workers=10**3000))
    told: list[str] = []
    gathering = pool.submit(company.first.gather, told.append, NEVER_S)
    refused = [pool.submit(join, lambda: invitation, hello, "process", silent, 0.3) for hello in hellos]
    for each in refused:
        each.exception()
    joining = [company.join(rank) for rank in (1, 2)]
    gathering.result()
    company.first.tell_all("prepare")
    assert all(future.result() for future in joining)
    told = [line for line in told if "waiting" not in line]
    assert [line for line in told if "was turned away: its recipe" in line] == told[:3]
    assert told[3:] == ["others that are turned away from now on are not told of"]


def test_there_are_never_many_strangers(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MAX_STRANGERS", 5)
    for _ in range(20):
        assert connect(company.address)
    with pytest.raises(UserError):
        company.first.gather(silent, limit_s=0.5)
    assert len(company.first._strangers) <= 5


def test_a_stranger_who_speaks_while_another_takes_its_place_ends_nothing(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120 connections ended process 0: the closed one was read, out of the same batch."""
    monkeypatch.setattr(rendezvous, "_MAX_STRANGERS", 1)
    oldest = connect(company.address)
    assert oldest is not None
    company.first._pump(10.0)
    assert connect(company.address)
    oldest.send_handshake(b"hello")
    company.first._pump(10.0)
    assert len(company.first._strangers) <= 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"size": 4}, "it counts 4 processes, process 0 counts 3"),
        ({"rank": 3}, "there is no process 3 of 3 with 1 workers"),
        ({"workers": 0}, "there is no process 1 of 3 with 0 workers"),
        ({"versions": "older"}, "it has older, process 0 has versions"),
        ({"recipe": "another"}, "its recipe, or its --set, differs from that of process 0"),
    ],
)
def test_a_process_that_does_not_fit_is_told_why(
    company: Company, pool: ThreadPoolExecutor, changes: dict[str, Any], problem: str
) -> None:
    told: list[str] = []
    refused = company.join(changes.pop("rank", 1), **changes)
    gathering = pool.submit(company.first.gather, told.append, 20.0)
    with pytest.raises(RefusedError) as caught:
        refused.result().hear("prepare")
    assert (str(caught.value), caught.value.exit_status) == (problem, 2)
    right = [company.join(rank) for rank in (1, 2)]
    gathering.result()
    company.first.tell_all("prepare")
    assert all(future.result() for future in right), "those that fit still come in"
    assert any(problem in line for line in told)


def test_two_that_say_they_are_the_same_are_not_both_taken(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    gathering = pool.submit(company.first.gather, silent, 20.0)
    first = company.join(1)
    wait_until(lambda: 1 in company.first.hellos)
    with pytest.raises(RefusedError, match="host1 is process 1 already"):
        company.join(1).result().hear("prepare")
    company.join(2)
    gathering.result()
    company.first.tell_all("prepare")
    assert first.result().hear("prepare")


def test_processes_that_do_not_come_are_named(company: Company) -> None:
    told: list[str] = []
    with pytest.raises(UserError, match="processes 1, 2 did not come within 0 seconds"):
        company.first.gather(told.append, limit_s=0.2)
    assert told == []


def test_whoever_waits_long_says_for_whom(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_SOON_S", -1.0)
    told: list[str] = []
    with pytest.raises(UserError):
        company.first.gather(told.append, limit_s=0.4)
    assert told == ["waiting for processes 1, 2 ..."]
    told.clear()
    with pytest.raises(UserError, match="node 0 did not answer at 127"):
        join(lambda: Invitation(Address("127.0.0.1", 9)), OWN, "node", told.append, 0.4)
    assert told == ["waiting for node 0 at 127.0.0.1:9 ..."]


def test_whoever_listens_in_silence_is_not_waited_for_longer_than_anybody_else() -> None:
    with listen("127.0.0.1") as silent:
        invitation = Invitation(Address("127.0.0.1", silent.getsockname()[1]), "s" * 32)
        with pytest.raises(UserError, match="node 0 did not answer at 127"):
            join(lambda: invitation, OWN, "node", print, 0.4)


def test_a_failure_of_process_0_reaches_those_that_wait_and_those_that_come_late(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    early = company.join(1)
    refusing = pool.submit(company.first.refuse, UserError("train.en does not exist"), 20.0)
    late = company.join(2)
    for joining in (early, late):
        with pytest.raises(RefusedError, match=r"train\.en does not exist") as caught:
            joining.result().hear("prepare")
        assert caught.value.exit_status == 2
    refusing.result()


def test_a_refusal_counts_though_the_invitation_is_gone_by_the_time_it_comes(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    invitations = [Invitation(company.address, "secret")]
    joining = pool.submit(
        join,
        lambda: invitations[0] if invitations else None,
        replace(OWN, rank=1),
        "process",
        silent,
        20.0,
    )
    wait_until(lambda: pump(company.first) == {0, 1})
    invitations.clear()
    time.sleep(0.5)
    company.first.refuse(StoppedError("stopped"), wait_s=0.0)
    with pytest.raises(RefusedError, match="stopped") as caught:
        joining.result().hear("prepare")
    assert caught.value.exit_status == 75


def pump(master: Rendezvous) -> set[int]:
    master._pump(0.01)
    return set(master.hellos)


def test_a_failure_of_another_while_it_gets_ready_is_raised_with_its_name(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    members = company.gathered(1, 2)
    members[1].say("ready")
    members[2].say("failed", failure="no disk")
    with pytest.raises(UserError, match="process 2 on host2: no disk"):
        company.first.ask_all("ready?")


def test_the_result_comes_after_the_last_heartbeats(company: Company) -> None:
    members = company.gathered(1, 2)
    for kind, values in (("heartbeat", {"text": "{}"}), ("result", {"result": {"step": 9}})):
        company.first.tell_all(kind, **values)
    assert members[1].hear_result(NEVER_S) == {"step": 9}
    company.first.connections[2].release()
    assert members[2].hear_result(NEVER_S) == {"step": 9}
    assert members[2].hear_result(NEVER_S) is None


def test_another_that_goes_before_it_begins_is_named(company: Company) -> None:
    members = company.gathered(1, 2)
    members[1].say("ready")
    members[2].connection.release()
    with pytest.raises(TrainingError, match="process 2 on host2 has gone before training began"):
        company.first.ask_all("ready?")


def test_a_stale_invitation_is_given_up_for_a_new_one(
    listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    """One leads to nobody, one to somebody who takes calls and says nothing: another program's port by now."""
    with listen("127.0.0.1") as mute, listen("127.0.0.1") as gone:
        stale = [Address(*gone.getsockname()), Address(*mute.getsockname())]
        gone.close()
        current = [Invitation(stale[0], "old")]
        joining = pool.submit(
            join,
            lambda: current[0],
            replace(OWN, rank=1, size=2),
            "process",
            silent,
            20.0,
        )
        time.sleep(0.3)
        current[0] = Invitation(stale[1], "older")
        mute.accept()[0].close()
        company = Company(listener, pool, replace(OWN, size=2))
        current[0] = Invitation(company.address, "secret")
        company.first.gather(silent, limit_s=20.0)
        company.first.tell_all("prepare")
        assert joining.result().hear("prepare")


def test_what_others_say_is_safe_to_print_and_cut(company: Company) -> None:
    members = company.gathered(1, 2)
    members[1].say("ready")
    members[2].say("failed", failure="a\x1b[2Jb" + "x" * 500_000)
    with pytest.raises(UserError, match=r"process 2 on host2: a\\u001b\[2Jbx+$") as caught:
        company.first.ask_all("ready?")
    assert len(str(caught.value)) < 21_000


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), math.inf, math.nan, "\ud800", "\x1b[2J", "\0", "1", 2.0])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["rank", "size", "workers", "recipe", "host", "versions", "nonce", "proof", "secret"]
KEYS += ["failure", "exit_status", "shares_folder", "local_rank"]
KINDS = ["hello", "failed", "ready", "refused", "heartbeat", ""]
objects = st.builds(
    lambda kind, entries: {"kind": kind, **entries},
    st.sampled_from(KINDS) | values,
    st.dictionaries(st.sampled_from(KEYS), values, max_size=6),
)
nested = st.integers(1, 1500).map(
    lambda depth: b'{"kind": "hello", "host": ' + b"[" * depth + b"]" * depth + b"}"
)
hostile = (objects | values).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60) | nested
fuzzed = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fuzzed
@given(st.binary(max_size=300))
def test_no_bytes_of_a_stranger_end_process_0(company: Company, data: bytes) -> None:
    with socket.create_connection((company.address.host, company.address.port)) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        wait_until(lambda: pump(company.first) == {0} and is_over(stranger))
    assert set(company.first.hellos) == {0}


@fuzzed
@given(hostile)
@example(b'{"kind": "hello", "secret": "\\ud800"}')
def test_no_hello_of_one_that_knows_the_secret_ends_process_0(company: Company, content: bytes) -> None:
    connection = connect(company.address)
    assert connection is not None

    def wait(is_so: Callable[[], bool]) -> None:
        while not is_so() and not connection.is_closed:
            company.first._pump(0.01)
            connection.read()

    assert introduce(connection, b"secret", 1, wait)
    assert connection._encoder is not None
    connection.send_handshake(connection._encoder.encode(content))
    wait(lambda: False)
    connection.release()
    assert set(company.first.hellos) == {0}


def is_over(connection: socket.socket) -> bool:
    """Whether process 0 has ended a connection, on which it says no more than its challenge."""
    with contextlib.suppress(BlockingIOError):
        try:
            return connection.recv(4096, socket.MSG_DONTWAIT) == b""
        except ConnectionError:
            return True
    return False


@fuzzed
@given(st.lists(hostile, max_size=4))
def test_nothing_that_a_process_says_that_was_let_in_ends_process_0(contents: list[bytes]) -> None:
    """What is wrong is an error with its name, or its own end."""
    with (
        listen("127.0.0.1") as listener,
        socket.create_connection(listener.getsockname()) as theirs,
        listener.accept()[0] as ours,
    ):
        first = Rendezvous(listener, replace(OWN, size=2), "process", "secret")
        first.connections[1] = connection = Connection(ours)
        first.hellos[1] = replace(OWN, rank=1, size=2, host="host1")
        first._selector.register(connection, selectors.EVENT_READ, connection)
        encoder = MessageEncoder(bytes(32))
        connection.begin(bytes(32), bytes(32))
        theirs.sendall(b"".join(map(encoder.encode, contents)))
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EchelonError):
            agree_on_folder(PLACE, [first.hellos[0], first.hellos[1]], first.ask_all("prepare"))


def test_a_secret_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file, long = tmp_path / "secret", "0123456789abcdef"
    file.touch(0o600)
    file.write_text(f"{long}\n")
    assert read_secret(file, {"ECHELON_SECRET": "another, which does not count"}) == long
    assert read_secret(None, {"ECHELON_SECRET": long}) == long
    assert read_secret(None, {}) == ""


def test_a_secret_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef")
    file.chmod(0o604)
    with pytest.raises(UserError, match=r"every user of this machine may use it; chmod o-rwx .*secret"):
        read_secret(file, {})


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40])
def test_a_secret_that_can_be_guessed_or_not_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UserError, match=r"openssl rand|is not a text file"):
        read_secret(tmp_path / "secret", {})
    with pytest.raises(UserError, match="cannot be read"):
        read_secret(tmp_path / "none", {})
    with pytest.raises(UserError, match="ECHELON_SECRET: a secret has 16"):
        read_secret(None, {"ECHELON_SECRET": "short"})
