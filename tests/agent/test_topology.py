"""Which hosts a host talks to; test_decision.py has whole clusters."""

from __future__ import annotations

from typing import Any

from echelon.agent.generation import Generation, Heard, Heartbeat, Rules
from echelon.agent.topology import NUM_HUBS, choose_hubs

RULES = Rules(num_hosts=1000, fewest=501, most=1000)
ALL = frozenset(range(1000))
LONG_AGO, NOW = 0.0, 100.0


def hears(*hosts: int, sees: frozenset[int] = ALL, age_s: float = 0.0, **more: Any) -> dict[int, Heard]:
    return {host: Heard(Heartbeat(host, sees, **more), age_s, 100.0) for host in hosts}


def called(*hosts: int) -> dict[int, float]:
    return dict.fromkeys(hosts, LONG_AGO)


def hubs_of(
    host: int, view: dict[int, Heard], before: dict[int, float] | None = None, rules: Rules = RULES
) -> list[int]:
    return list(choose_hubs(Heartbeat(host, frozenset(view)), view, before or {}, NOW, rules))


def test_a_member_talks_to_the_first_hosts_only() -> None:
    assert hubs_of(700, {}) == [0, 1, 2]
    assert hubs_of(700, hears(0, 1, 2)) == [0, 1, 2]
    assert hubs_of(1, hears(0, *range(2, 1000))) == [0, 1, 2]


def test_another_takes_the_place_of_a_hub_that_is_silent() -> None:
    assert hubs_of(700, hears(0, 2), called(0, 1, 2)) == [0, 1, 2, 3, 4, 5], "until one of them is heard"
    assert hubs_of(700, hears(0, 2, 3), called(0, 1, 2)) == [0, 1, 2, 3], "and the silent one is called on"
    assert hubs_of(700, hears(0, 2) | hears(1, age_s=RULES.silence_s), called(0, 1, 2)) == [0, 1, 2, 3, 4, 5]


def test_a_host_that_was_just_called_is_not_silent_yet() -> None:
    since = choose_hubs(Heartbeat(700), {}, {}, NOW, RULES)
    assert since == dict.fromkeys((0, 1, 2), NOW)
    assert list(choose_hubs(Heartbeat(700), {}, since, NOW + RULES.silence_s, RULES)) == [0, 1, 2]
    later = NOW + RULES.silence_s + 0.1
    assert list(choose_hubs(Heartbeat(700), {}, since, later, RULES)) == [0, 1, 2, 3, 4, 5]


def test_if_all_are_silent_more_and_more_are_tried() -> None:
    counts, since, now = [], dict[int, float](), NOW
    while len(since) < RULES.num_hosts - 1:
        since = choose_hubs(Heartbeat(999), {}, since, now, RULES)
        counts.append(len(since))
        now += RULES.silence_s + 0.1
    assert counts == [3, 6, 12, 24, 48, 96, 192, 384, 768, 1000]


def test_a_host_that_cannot_lead_is_no_hub() -> None:
    blind = hears(1, can_lead=False)
    assert hubs_of(700, hears(0, 2, 3) | blind) == [0, 1, 2, 3]
    assert hubs_of(700, hears(0, 2, 3) | hears(1, leaving=True)) == [0, 1, 2, 3]


def test_a_leader_is_called_wherever_it_stands() -> None:
    generation = Generation(3, 800, (0, 700, 800))
    assert hubs_of(700, hears(0, 1, 2, generation=generation, is_led=True)) == [0, 1, 2, 800]
    assert hubs_of(700, hears(0, 1, 2, generation=generation)) == [0, 1, 2], "nobody hears it any more"


def test_while_too_few_are_there_those_whom_nobody_hears_are_tried_too() -> None:
    few = frozenset(range(10)) | {700}
    assert hubs_of(700, hears(0, 1, 2, sees=few)) == [0, 1, 2, 10, 11, 12]
    assert hubs_of(700, hears(0, 1, 2, sees=few), called(0, 1, 2, 10, 11, 12)) == [0, 1, 2, *range(10, 16)]


def test_a_small_cluster_talks_all_to_all() -> None:
    rules = Rules(num_hosts=NUM_HUBS, fewest=2, most=NUM_HUBS)
    assert [hubs_of(host, {}, rules=rules) for host in range(3)] == [[0, 1, 2]] * 3


def test_a_fixed_group_talks_to_its_first_host() -> None:
    rules = Rules(num_hosts=3, fewest=3, most=3, is_fixed=True)
    assert hubs_of(2, {}, called(0), rules) == [0]
