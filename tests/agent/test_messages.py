"""What is left out of repeated heartbeats, and what the other end makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echelon.agent.generation import Generation, Heartbeat
from echelon.agent.messages import Announcement, HeartbeatReader, Link

HOSTS = 1000
LEADER, DEPUTY = 0, 1
GENERATION = Generation(3, LEADER, tuple(range(HOSTS)), "running", 1234)
HEARTBEAT = Heartbeat(
    7, frozenset({LEADER, DEPUTY}), GENERATION, "running", pulses={7: (5, 4, 3, 0.25, False)}
)


class OtherEnd:
    def __init__(self, host: int) -> None:
        self.messages: list[bytes] = []
        self.link = Link(host, self.messages.append)
        self._reader = HeartbeatReader(HOSTS)

    def read(self) -> Heartbeat:
        *_, heartbeat = [self._reader.read(message) for message in self.messages]
        self.messages.clear()
        return heartbeat


def test_the_leader_hears_everything_and_others_all_but_the_pulses() -> None:
    leader, deputy = OtherEnd(LEADER), OtherEnd(DEPUTY)
    news = Announcement(HEARTBEAT)
    leader.link.tell(news)
    deputy.link.tell(news)
    assert leader.read() == HEARTBEAT
    assert deputy.read() == replace(HEARTBEAT, pulses={})


def test_what_has_not_changed_is_not_said_again() -> None:
    leader, deputy = OtherEnd(LEADER), OtherEnd(DEPUTY)
    news = Announcement(HEARTBEAT)
    leader.link.tell(news)
    deputy.link.tell(news)
    before = leader.read(), deputy.read()
    later = replace(HEARTBEAT, pulses={7: (6, 5, 4, 0.0, False)})
    news = Announcement(later, news)
    leader.link.tell(news)
    deputy.link.tell(news)
    assert [len(message) < 50 for message in leader.messages] == [True]
    assert deputy.messages == [b""]
    assert (leader.read(), deputy.read()) == (later, before[1])


def test_what_has_changed_is_said_to_all() -> None:
    deputy = OtherEnd(DEPUTY)
    news = Announcement(HEARTBEAT)
    deputy.link.tell(news)
    finished = replace(HEARTBEAT, phase="finished", pulses={})
    deputy.link.tell(Announcement(finished, news))
    assert deputy.read() == finished


def test_a_new_connection_begins_with_everything() -> None:
    news = Announcement(HEARTBEAT)
    Link(DEPUTY, lambda _: None).tell(news)
    deputy = OtherEnd(DEPUTY)
    deputy.link.tell(news)
    assert deputy.read() == replace(HEARTBEAT, pulses={})


@pytest.mark.parametrize("message", [b"", b"P{}", b"X", b"H", b"Hnull", b'H{"host":1000}'])
def test_a_connection_that_begins_otherwise_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        HeartbeatReader(HOSTS).read(message)


@pytest.mark.parametrize("message", [b"X", b"P", b"P[]", b'P{"7":[1,2]}'])
def test_nonsense_in_the_middle_is_refused(message: bytes) -> None:
    reader = HeartbeatReader(HOSTS)
    reader.read(Announcement(HEARTBEAT).whole)
    with pytest.raises(ValueError, match=r".*"):
        reader.read(message)
