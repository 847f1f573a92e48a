"""Processes that meet, on real sockets: who is let in, who is not, and how all learn how it ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from echelon.commands.together import agree_on_folder
from echelon.errors import EchelonError, RefusedError, StoppedError, TrainingError, UserError
from echelon.launch import meeting
from echelon.launch.link import Link, call
from echelon.launch.local import listen
from echelon.launch.meeting import Hello, Invitation, Master, Member, Report, Verdict, join, read_secret
from echelon.launch.site import Address, Place
from echelon.monitor.heartbeat import Pulse
from echelon.untrusted import printable
from tests.waiting import wait_until

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
    links: list[Link] = []

    def note(link: Link, *arguments: Any) -> None:
        original(link, *arguments)
        links.append(link)

    original = Link.__init__
    monkeypatch.setattr(Link, "__init__", note)
    yield
    for link in links:
        link.release()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_LEAVE_S", 0.05)


class Company:
    """Process 0 on a listener, and others that join it from threads."""

    def __init__(self, listener: socket.socket, pool: ThreadPoolExecutor, own: Hello = OWN) -> None:
        self.address = Address(*listener.getsockname())
        self.master = Master(listener, own, "process", "secret")
        self._pool = pool

    def join(self, rank: int, **changes: Any) -> Future[Member]:
        hello = replace(OWN, rank=rank, host=f"host{rank}", **changes)
        invitation = Invitation(self.address, "secret")
        return self._pool.submit(join, lambda: invitation, hello, "process", silent, 20.0)

    def gathered(self, *ranks: int) -> dict[int, Member]:
        """Everybody, with what they were told first."""
        joining = {rank: self.join(rank) for rank in ranks}
        self.master.gather(silent, limit_s=20.0)
        self.master.tell_all("prepare")
        members = {rank: future.result() for rank, future in joining.items()}
        for member in members.values():
            member.hear("prepare")
        return members


@pytest.fixture
def company(listener: socket.socket, pool: ThreadPoolExecutor) -> Company:
    return Company(listener, pool)


def test_all_meet_get_ready_and_begin(company: Company, pool: ThreadPoolExecutor) -> None:
    members = company.gathered(2, 1)
    assert {rank: hello.host for rank, hello in company.master.hellos.items()} == {
        0: "host0",
        1: "host1",
        2: "host2",
    }
    asking = pool.submit(company.master.ask_all, "ready?", data=[1])
    for rank, member in members.items():
        assert member.hear("ready?") == {"kind": "ready?", "data": [1]}
        member.say("ready", mine=rank)
    assert {rank: answer["mine"] for rank, answer in asking.result().items()} == {1: 1, 2: 2}
    company.master.tell(2, "begin", first_rank=2)
    assert members[2].hear("begin")["first_rank"] == 2


def conclude(
    company: Company, members: dict[int, Member], pool: ThreadPoolExecutor, reports: list[Report]
) -> list[Verdict]:
    """Everybody's verdict, given everybody's report."""
    futures = [pool.submit(members[rank].conclude, reports[rank]) for rank in members]
    asked: list[bool] = []

    def summarise(is_finished: bool) -> dict[str, Any]:
        asked.append(is_finished)
        return {"finished": is_finished}

    verdict = company.master.conclude(reports[0], summarise)
    return [verdict, *(future.result() for future in futures)]


@pytest.mark.parametrize("finished", [(True, True, True), (True, False, True), (False, False, False)])
def test_all_hear_the_same_result(
    company: Company, pool: ThreadPoolExecutor, finished: tuple[bool, ...]
) -> None:
    members = company.gathered(1, 2)
    verdicts = conclude(company, members, pool, [Report(is_finished=value) for value in finished])
    assert verdicts == [Verdict(result={"finished": all(finished)})] * 3


def test_all_hear_the_failure_that_came_first(company: Company, pool: ThreadPoolExecutor) -> None:
    members = company.gathered(1, 2)
    reports = [
        Report(failure="the connection broke", failed_at=1001.0),
        Report(failure="we were killed", failed_at=math.inf),
        Report(failure="out of memory", failed_at=1000.0, exit_status=2),
    ]
    verdicts = conclude(company, members, pool, reports)
    assert verdicts == [Verdict(failure="out of memory", exit_status=2)] * 3


def test_a_failure_elsewhere_is_noticed_while_training(company: Company) -> None:
    members = company.gathered(1, 2)
    company.master.poll()
    assert not company.master.is_troubled
    members[2].say("report", **asdict(Report(failure="out of memory", failed_at=5.0)))
    wait_until(lambda: poll(company.master))
    wait_until(lambda: poll(members[1]))


def poll(side: Master | Member, silence_s: float = math.inf) -> bool:
    side.poll(silence_s)
    return side.is_troubled


def test_a_process_that_dies_without_a_word_is_what_made_the_others_fail(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    members = company.gathered(1, 2)
    members.pop(2)._link.release()
    wait_until(lambda: poll(company.master))
    verdicts = conclude(company, members, pool, [Report(failure="the connection broke", failed_at=1.0)] * 2)
    assert verdicts == [Verdict(failure="process 2 on host2 has gone without a word")] * 2


def test_process_0_that_dies_without_a_word_is_noticed(company: Company) -> None:
    members = company.gathered(1, 2)
    for link in company.master._links.values():
        link.release()
    wait_until(lambda: poll(members[1]))
    assert members[1].conclude(Report()).failure == "process 0 has gone without a word"
    assert members[2].conclude(Report(failure="my own", failed_at=0.0)).failure == "my own"
    later = members[2].conclude(Report(failure="the connection broke", failed_at=5.0)).failure
    assert later == "process 0 has gone without a word; then the connection broke"


def pulse(step: int, turns: int, silent_s: float) -> Pulse:
    return Pulse(beats=100, turns=turns, step=step, silent_s=silent_s)


def test_a_worker_that_all_wait_for_is_found_wherever_it_is(company: Company) -> None:
    """All wait in a collective; the one that is a turn behind holds the others up."""
    members = company.gathered(1, 2)
    behind, ahead = pulse(9, 101, 20.0), pulse(9, 103, 20.0)
    assert members[1].share({1: behind}, 5.0) is None
    assert members[2].share({2: ahead}, 5.0) is None

    def find() -> bool:
        company.master.poll()
        assert company.master.share({0: ahead}, 5.0) is None
        members[1].poll()
        return members[1].share({1: behind}, 5.0) == 1

    wait_until(find)
    members[2].poll()
    assert members[2].share({2: ahead}, 5.0) is None
    assert not members[2].is_troubled


def test_a_worker_of_process_0_that_all_wait_for_is_found(company: Company) -> None:
    members = company.gathered(1, 2)
    for rank, member in members.items():
        member.share({rank: pulse(9, 103, 20.0)}, 5.0)
    mine = {0: pulse(9, 102, 20.0)}
    assert company.master.share(mine, 5.0) == 0, "it is at work, and silent"
    waiting = {0: pulse(9, 101, 20.0)}
    assert company.master.share(waiting, 5.0) is None, "the others may be at work"
    wait_until(lambda: len(company.master._pulses) == 2 or poll(company.master))
    assert company.master.share(waiting, 5.0) == 0
    assert company.master.share(waiting, 0.0) is None, "nobody is to look"


def test_pulses_that_make_no_sense_are_left_out(company: Company) -> None:
    members = company.gathered(1, 2)
    members[1].say("pulses", pulses=[[1, 2, 3, 4, 5.5], [1, 2], "x", None, [1, 2, 3, 4, "x"]])
    members[2].say("pulses", pulses="none")
    wait_until(lambda: len(company.master._pulses) == 2 or poll(company.master))
    assert company.master._pulses == {1: {1: Pulse(2, 3, 4, 5.5)}, 2: {}}


def test_a_process_that_falls_silent_is_noticed_from_both_sides(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = company.gathered(1, 2)
    now = 0.0
    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(5):
        now += 10.0
        company.master.share({}, 0.0)
        for member in members.values():
            member.share({}, 0.0)
            wait_until(partial(has_news, member))
        wait_until(lambda: members_heard(company.master) == {1, 2})
        assert not any([poll(company.master, 30.0), poll(members[1], 30.0), poll(members[2], 30.0)])
    now += 40.0
    assert not poll(members[2])
    assert poll(members[2], 30.0), "process 0 has said nothing"
    members[1].share({}, 0.0)
    wait_until(lambda: members_heard(company.master) == {1})
    assert poll(company.master, 30.0)
    assert [report.failure for report in company.master._reports.values()] == [
        "process 2 on host2 has been silent for 40 seconds, without a word"
    ]


def has_news(member: Member) -> bool:
    member._link.read()
    return bool(member._link.inbox)


def members_heard(master: Master) -> set[int]:
    """Of whom there is news."""
    master._pump(0.01)
    return {rank for rank, link in master._links.items() if link.inbox}


def test_strangers_get_nowhere_and_disturb_nobody(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_HELLO_S", 0.2)
    told: list[str] = []
    hello = asdict(replace(OWN, rank=1))
    lines: list[bytes] = [
        b"",
        b"\n",
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(4000),
        b"{" * 100_000,
        json.dumps({"kind": "hello"}).encode() + b"\n",
        json.dumps({"kind": "hello", **hello, "rank": "1"}).encode() + b"\n",
        json.dumps({"kind": "hello", **hello, "nonce": "", "proof": "guessed"}).encode() + b"\n",
        json.dumps({"kind": "hello", **hello, "nonce": "", "proof": "\ud800"}).encode() + b"\n",
        json.dumps({"kind": "hello", **hello, "nonce": "\ud800", "proof": ""}).encode() + b"\n",
        json.dumps({"kind": "hello", **hello, "host": "\ud800", "nonce": "", "proof": ""}).encode() + b"\n",
        b'{"kind": "hello", "secret": "\\ud800"}\n',
        json.dumps({"kind": "report", "failure": "gotcha"}).encode() + b"\n",
    ]
    strangers = [socket.create_connection((company.address.host, company.address.port)) for _ in lines]
    for stranger, line in zip(strangers, lines, strict=True):
        stranger.sendall(line)
    stop = threading.Event()

    def scan() -> None:
        while not stop.wait(0.001):
            link = call(company.address)
            if link:
                link.release()

    scanner = threading.Thread(target=scan)
    scanner.start()
    joining = [company.join(rank) for rank in (1, 2)]
    try:
        company.master.gather(told.append, limit_s=20.0)
    finally:
        stop.set()
        scanner.join()
    company.master.tell_all("prepare")
    assert [future.result().hear("prepare")["kind"] for future in joining] == ["prepare", "prepare"]
    assert told in ([], ["waiting for processes 1, 2 ..."])
    for stranger in strangers:
        stranger.settimeout(20)
        with stranger, contextlib.suppress(ConnectionResetError):
            heard = read_all(stranger)
            assert heard.count(b"\n") <= 1, "more than a challenge"


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
            company.master.gather(silent, limit_s=20.0)
            company.master.tell_all("prepare")
            assert joining.result().hear("prepare")
            for one in (caller, called):
                one.shutdown(socket.SHUT_RDWR)
    assert b"challenge" in heard
    assert b"prepare" in heard
    assert b"secret" not in heard


def pass_on(one: socket.socket, other: socket.socket, heard: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(4096):
            heard.extend(data)
            other.sendall(data)


def test_a_hello_cannot_be_used_again(company: Company, pool: ThreadPoolExecutor) -> None:
    """Every connection has its own challenge, and the proof is about it."""
    gathering = pool.submit(company.master.gather, silent, 20.0)
    handshake = meeting._Handshake("secret", "an earlier challenge", "nonce", replace(OWN, rank=1))
    with socket.create_connection((company.address.host, company.address.port)) as again:
        hello = {**asdict(handshake.hello), "nonce": "nonce", "proof": handshake.prove("caller")}
        again.sendall(json.dumps({"kind": "hello", **hello}).encode() + b"\n")
        again.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert b"welcome" not in read_all(again)
    joining = [company.join(rank) for rank in (1, 2)]
    gathering.result()
    company.master.tell_all("prepare")
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
            for line in (
                {"kind": "challenge", "nonce": "x"},
                {"kind": "welcome", "proof": "x"},
                {"kind": "prepare"},
            ):
                connection.sendall(json.dumps(line).encode() + b"\n")
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
        company.master.gather(told.append, limit_s=1.0)
    assert set(company.master.hellos) == {0}
    assert not any("turned away" in line for line in told)
    company.master.refuse(UserError("over"), wait_s=0.0)
    with pytest.raises(UserError):
        refused.result()


def test_a_time_beyond_all_floats_ends_nobody(company: Company) -> None:
    members = company.gathered(1, 2)
    members[1].say("report", failure="x", failed_at=10**400)
    members[2].say("pulses", pulses=[[2, 1, 1, 1, 10**400]])
    wait_until(lambda: poll(company.master) and 2 in company.master._pulses)
    assert company.master._pulses[2][2].silent_s == math.inf


def test_there_are_never_many_strangers(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_MAX_STRANGERS", 5)
    for _ in range(20):
        assert call(company.address)
    with pytest.raises(UserError):
        company.master.gather(silent, limit_s=0.5)
    assert len(company.master._strangers) <= 5


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
    gathering = pool.submit(company.master.gather, told.append, 20.0)
    with pytest.raises(RefusedError) as caught:
        refused.result().hear("prepare")
    assert (str(caught.value), caught.value.exit_status) == (problem, 2)
    right = [company.join(rank) for rank in (1, 2)]
    gathering.result()
    company.master.tell_all("prepare")
    assert all(future.result() for future in right), "those that fit still come in"
    assert any(problem in line for line in told)


def test_two_that_say_they_are_the_same_are_not_both_taken(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    gathering = pool.submit(company.master.gather, silent, 20.0)
    first = company.join(1)
    wait_until(lambda: 1 in company.master.hellos)
    with pytest.raises(RefusedError, match="host1 is process 1 already"):
        company.join(1).result().hear("prepare")
    company.join(2)
    gathering.result()
    company.master.tell_all("prepare")
    assert first.result().hear("prepare")


def test_processes_that_do_not_come_are_named(company: Company) -> None:
    told: list[str] = []
    with pytest.raises(UserError, match="processes 1, 2 did not come within 0 seconds"):
        company.master.gather(told.append, limit_s=0.2)
    assert told == []


def test_whoever_waits_long_says_for_whom(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_SOON_S", -1.0)
    told: list[str] = []
    with pytest.raises(UserError):
        company.master.gather(told.append, limit_s=0.4)
    assert told == ["waiting for processes 1, 2 ..."]
    told.clear()
    with pytest.raises(UserError, match="node 0 did not answer at 127"):
        join(lambda: Invitation(Address("127.0.0.1", 9)), OWN, "node", told.append, 0.4)
    assert told == ["waiting for node 0 at 127.0.0.1:9 ..."]


def test_a_failure_of_process_0_reaches_those_that_wait_and_those_that_come_late(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    early = company.join(1)
    refusing = pool.submit(company.master.refuse, UserError("train.en does not exist"), 20.0)
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
    wait_until(lambda: pump(company.master) == {0, 1})
    invitations.clear()
    time.sleep(0.5)
    company.master.refuse(StoppedError("stopped"), wait_s=0.0)
    with pytest.raises(RefusedError, match="stopped") as caught:
        joining.result().hear("prepare")
    assert caught.value.exit_status == 75


def pump(master: Master) -> set[int]:
    master._pump(0.01)
    return set(master.hellos)


def test_a_failure_of_another_while_it_gets_ready_is_raised_with_its_name(
    company: Company, pool: ThreadPoolExecutor
) -> None:
    members = company.gathered(1, 2)
    members[1].say("ready")
    members[2].say("failed", failure="no disk")
    with pytest.raises(UserError, match="process 2 on host2: no disk"):
        company.master.ask_all("ready?")


def test_another_that_goes_before_it_begins_is_named(company: Company) -> None:
    members = company.gathered(1, 2)
    members[1].say("ready")
    members[2]._link.release()
    with pytest.raises(TrainingError, match="process 2 on host2 has gone before training began"):
        company.master.ask_all("ready?")


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
        company.master.gather(silent, limit_s=20.0)
        company.master.tell_all("prepare")
        assert joining.result().hear("prepare")


def test_what_others_report_is_safe_to_print(company: Company, pool: ThreadPoolExecutor) -> None:
    members = company.gathered(1, 2)
    verdicts = conclude(company, members, pool, [Report(True), Report(failure="a\x1b[2Jb"), Report(True)])
    assert {verdict.failure for verdict in verdicts} == {"a\\u001b[2Jb"}


def test_long_texts_are_cut(company: Company, pool: ThreadPoolExecutor) -> None:
    members = company.gathered(1, 2)
    verdicts = conclude(company, members, pool, [Report(True), Report(failure="x" * 500_000), Report(True)])
    assert {len(verdict.failure) for verdict in verdicts} == {20_000}


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
KEYS += ["is_finished", "failure", "failed_at", "exit_status", "pulses", "shares_folder", "local_rank"]
KINDS = ["hello", "report", "pulses", "failed", "ready", "verdict", "refused", "trouble", ""]
pulses = st.lists(st.tuples(*[st.integers() | values] * 5), max_size=3)
objects = st.builds(
    lambda kind, entries, pulses: {"kind": kind, **entries, **({"pulses": pulses} if pulses else {})},
    st.sampled_from(KINDS) | values,
    st.dictionaries(st.sampled_from(KEYS), values, max_size=6),
    pulses,
)
nested = st.integers(1, 1500).map(
    lambda depth: b'{"kind": "hello", "nonce": ' + b"[" * depth + b"]" * depth + b"}"
)
hostile_lines = st.lists(
    (objects | values).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60) | nested,
    max_size=4,
).map(lambda lines: b"".join(line + b"\n" for line in lines))
fuzzed = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fuzzed
@given(hostile_lines)
@example(b'{"kind": "hello", "secret": "\\ud800"}\n')
def test_no_line_of_a_stranger_ends_process_0(company: Company, lines: bytes) -> None:
    with socket.create_connection((company.address.host, company.address.port)) as stranger:
        stranger.sendall(lines)
        stranger.shutdown(socket.SHUT_WR)
        wait_until(lambda: pump(company.master) == {0} and is_over(stranger))
    assert set(company.master.hellos) == {0}


def is_over(connection: socket.socket) -> bool:
    """Whether process 0 has ended a connection, on which it says no more than its challenge."""
    with contextlib.suppress(BlockingIOError):
        try:
            return connection.recv(4096, socket.MSG_DONTWAIT) == b""
        except ConnectionError:
            return True
    return False


@fuzzed
@given(lines=hostile_lines, hello=st.fixed_dictionaries(dict.fromkeys(KEYS[:6], values)))
def test_no_line_of_a_process_that_was_let_in_ends_process_0(lines: bytes, hello: dict[str, Any]) -> None:
    """It knows the secret and says whatever it likes; what is wrong is an error with its name, or its own end."""
    with (
        listen("127.0.0.1") as listener,
        socket.create_connection(listener.getsockname()) as theirs,
        listener.accept()[0] as ours,
    ):
        master = Master(listener, replace(OWN, size=2), "process", "secret")
        meeting._hello_of({"kind": "hello", **hello})
        master._links[1] = link = Link(ours)
        master.hellos[1] = replace(OWN, rank=1, size=2, host="host1")
        master._selector.register(link, selectors.EVENT_READ, link)
        theirs.sendall(lines)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EchelonError):
            agree_on_folder(PLACE, [master.hellos[0], master.hellos[1]], master.ask_all("prepare"))
        wait_until(lambda: poll(master) or link.is_closed)
        master.share({0: Pulse(1, 1, 1, 1.0)}, 5.0)
        verdict = master.conclude(Report(True), lambda is_finished: {"finished": is_finished})
        json.dumps(asdict(verdict)).encode()
        assert verdict.failure == printable(verdict.failure)


def test_a_secret_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file, long = tmp_path / "secret", "0123456789abcdef"
    file.write_text(f"{long}\n")
    assert read_secret(file, {"ECHELON_SECRET": "another, which does not count"}) == long
    assert read_secret(None, {"ECHELON_SECRET": long}) == long
    assert read_secret(None, {}) == ""


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40])
def test_a_secret_that_can_be_guessed_or_not_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UserError, match=r"openssl rand|cannot be read"):
        read_secret(tmp_path / "secret", {})
    with pytest.raises(UserError, match="cannot be read"):
        read_secret(tmp_path / "none", {})
    with pytest.raises(UserError, match="ECHELON_SECRET: a secret has 16"):
        read_secret(None, {"ECHELON_SECRET": "short"})
