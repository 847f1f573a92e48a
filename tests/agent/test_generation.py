"""The rules by which hosts train together, one by one; test_decision.py has them all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echelon.agent.generation import (
    Failure,
    Generation,
    Heard,
    HeardHosts,
    Heartbeat,
    HostPhase,
    Review,
    Rules,
    dump_heartbeat,
    find_alive,
    find_generation_to_follow,
    form_generation,
    has_quorum,
    is_ready_to_start,
    may_replace_generation,
    parse_heartbeat,
    review_generation,
    should_lead,
)

RULES = Rules(num_hosts=3, fewest=2, most=3)
ALL = (0, 1, 2)
GENERATION = Generation(4, 0, ALL, "running", 1234)


def says(
    host: int, generation: Generation | None = None, phase: HostPhase = "waiting", **more: Any
) -> Heartbeat:
    return Heartbeat(host, frozenset(ALL) - {host}, generation, phase, **more)


def heard(*heartbeats: Heartbeat, age_s: float = 0.0, steady_s: float = 100.0) -> dict[int, Heard]:
    return {heartbeat.host: Heard(heartbeat, age_s, steady_s) for heartbeat in heartbeats}


def working(
    phase: HostPhase = "running", generation: Generation = GENERATION, **more: Any
) -> tuple[Heartbeat, HeardHosts]:
    """A leader and the two that follow it."""
    return says(0, generation, phase, **more), heard(says(1, generation, phase), says(2, generation, phase))


def test_alive_is_who_is_heard_and_hears_us() -> None:
    silent = Heard(says(1), RULES.silence_s, 0)
    deaf = Heard(Heartbeat(2), 0, 0)
    assert find_alive(0, heard(says(1), says(2)), RULES) == [0, 1, 2]
    assert find_alive(0, {1: silent, 2: Heard(says(2), 0, 0)}, RULES) == [0, 2]
    assert find_alive(0, {1: Heard(says(1), 0, 0), 2: deaf}, RULES) == [0, 1]


@pytest.mark.parametrize(
    ("mine", "theirs", "is_followed"),
    [
        (None, Generation(1, 0, ALL), True),
        (Generation(1, 0, ALL), Generation(2, 0, ALL), True),
        (Generation(2, 0, ALL), Generation(1, 0, ALL), False),
        (Generation(1, 0, ALL), Generation(1, 0, ALL), False),
        (Generation(1, 0, ALL), Generation(1, 0, ALL, stage="running", store_port=7), True),
        (Generation(1, 0, ALL, stage="running", store_port=7), Generation(1, 0, ALL), False),
        (
            Generation(1, 0, ALL, stage="running", store_port=7),
            Generation(1, 0, ALL, stage="draining", store_port=7),
            True,
        ),
        (Generation(1, 1, ALL), Generation(1, 0, ALL), True),
    ],
)
def test_the_newest_and_furthest_generation_is_followed(
    mine: Generation | None, theirs: Generation, is_followed: bool
) -> None:
    found = find_generation_to_follow(says(2, mine), heard(says(0, theirs)), RULES)
    assert found == (theirs if is_followed else None)


def test_only_a_living_leaders_own_generation_is_followed() -> None:
    generation = Generation(9, 0, ALL)
    assert find_generation_to_follow(says(2), heard(says(1, generation)), RULES) is None, "hearsay"
    assert (
        find_generation_to_follow(says(2), heard(says(0, generation), age_s=RULES.silence_s), RULES) is None
    )
    assert find_generation_to_follow(says(2), heard(says(0, generation, can_lead=False)), RULES) is None


def test_that_the_run_is_over_is_believed_of_anybody() -> None:
    """Its leader, host 0, has left before host 2 heard it; host 1 has heard it."""
    mine, over = Generation(1, 0, ALL, "running", 1), Generation(1, 0, ALL, "ended", 1, outcome="finished")
    told = Heartbeat(1, sees=frozenset({2}), generation=over)
    assert (
        find_generation_to_follow(Heartbeat(2, generation=mine), {1: Heard(told, 0.0, 99.0)}, RULES) == over
    )
    older = Heartbeat(2, generation=replace(mine, number=2))
    assert find_generation_to_follow(older, {1: Heard(told, 0.0, 99.0)}, RULES) is None, (
        "of an earlier generation"
    )


def test_the_first_of_enough_hosts_leads_where_nobody_does() -> None:
    generation = Generation(3, 0, ALL)
    others = heard(says(1, generation), says(2, generation))
    assert should_lead(says(1, generation), heard(says(2, generation)), RULES, RULES.settle_s)
    assert not should_lead(says(1, generation), heard(says(2, generation)), RULES, 0.0), (
        "it waits for a moment"
    )
    assert not should_lead(says(2, generation), heard(says(1, generation)), RULES, 100), "not the first"
    assert not should_lead(
        says(1, generation), heard(says(0, generation), says(2, generation)), RULES, 100
    ), "somebody leads"
    assert not should_lead(says(1, generation), {}, RULES, 100), "alone"
    assert not should_lead(says(0, generation, can_lead=False), others, RULES, 100)
    assert should_lead(says(1), heard(says(0, can_lead=False), says(2)), RULES, 100), "the first that can"


def test_the_first_generation_waits_for_all_hosts_or_for_long() -> None:
    assert should_lead(says(0), heard(says(1), says(2)), RULES, 0.0)
    assert not should_lead(says(0), heard(says(1)), RULES, RULES.start_s - 1)
    assert should_lead(says(0), heard(says(1)), RULES, RULES.start_s)


def test_a_new_generation_has_a_higher_number_than_any_that_was_heard_of() -> None:
    seen = heard(says(1, Generation(7, 1, ALL)), says(2, Generation(5, 1, ALL)))
    assert form_generation(says(0, Generation(6, 0, ALL)), seen, RULES) == Generation(8, 0, ALL)
    assert form_generation(says(0), {}, RULES) == Generation(1, 0, (0,))


def test_a_generation_has_no_more_hosts_than_allowed_and_its_leader_always() -> None:
    assert form_generation(says(2), heard(says(0), says(1)), replace(RULES, most=2)).members == (0, 2)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ("running", "running", Review(GENERATION)),
        ("finished", "running", Review(GENERATION)),
        ("finished", "finished", Review(GENERATION.end("finished"))),
        ("interrupted", "finished", Review(GENERATION, "the workers left")),
        ("failed", "running", Review(GENERATION, "a worker failed")),
        ("ready", "ready", Review(GENERATION)),
    ],
)
def test_what_a_leader_makes_of_its_members_phases(
    mine: HostPhase, theirs: HostPhase, expected: Review
) -> None:
    heartbeats = heard(says(1, GENERATION, theirs), says(2, GENERATION, theirs))
    assert review_generation(says(0, GENERATION, mine), heartbeats, RULES, RULES.settle_s) == expected


def test_a_lost_member_and_a_members_wish_to_stop() -> None:
    mine, view = working()
    assert review_generation(mine, {1: view[1]}, RULES, 0).replace_because == "a host is lost"
    stopped = replace(mine, stop=1)
    assert review_generation(stopped, {1: view[1]}, RULES, 0).generation.outcome == "interrupted", (
        "nothing is begun anew"
    )
    asked = {**view, 2: Heard(says(2, GENERATION, "running", stop=1), 0, 9)}
    assert review_generation(mine, asked, RULES, 0).generation.stage == "draining"
    told = {**view, 2: Heard(says(2, GENERATION, "running", stop=2), 0, 9)}
    assert review_generation(mine, told, RULES, 0).generation.outcome == "interrupted"
    mine, view = working("interrupted", stop=1)
    assert review_generation(mine, view, RULES, 0).generation.outcome == "interrupted"


def test_a_member_whose_agent_was_started_anew_has_lost_its_workers() -> None:
    mine, view = working()
    again = {**view, 2: Heard(says(2, GENERATION, "waiting"), 0, 9)}
    assert review_generation(mine, again, RULES, 0).replace_because == "a host is lost"
    unbegun = replace(GENERATION, stage="forming", store_port=0)
    mine, view = working("waiting", unbegun)
    assert review_generation(mine, view, RULES, 0) == Review(unbegun)


def test_a_leader_outdoes_a_greater_generation_that_nobody_leads() -> None:
    """Of the same number, made by a host that did not hear of this one and was then started anew."""
    generation, greater = Generation(6, 1, ALL), Generation(6, 0, ALL)
    mine, follower = says(1, generation, "ready"), says(2, greater, "failed")
    assert (
        review_generation(mine, heard(says(0, generation), follower), RULES, 0).replace_because
        == "a host is lost"
    )
    mine = replace(mine, generation=replace(generation, members=(1, 2)))
    assert review_generation(mine, heard(follower), RULES, 0).replace_because == "a host is lost"
    led = replace(follower, is_led=True)
    assert review_generation(mine, heard(led), RULES, 0).replace_because is None, "it hears that leader"


def test_a_failure_is_not_judged_before_others_had_time_to_fail_or_fall_silent() -> None:
    mine, view = working()
    failure = Failure("it broke", is_final=False, is_first_hand=False)
    own = Failure("out of memory", is_final=False, is_first_hand=True)
    failed = {1: Heard(says(1, GENERATION, "failed", failure=failure), 0, 9), 2: view[2]}
    assert review_generation(mine, failed, RULES, 0.0) == Review(GENERATION)
    assert review_generation(mine, failed, RULES, RULES.settle_s) == Review(
        GENERATION, "a worker failed", (failure,)
    )
    late = {**failed, 2: Heard(view[2].heartbeat, RULES.settle_s + 0.1, 9)}
    assert review_generation(mine, late, RULES, RULES.settle_s) == Review(GENERATION)
    both = {**failed, 2: Heard(says(2, GENERATION, "failed", failure=own), 0, 9)}
    assert review_generation(mine, both, RULES, RULES.settle_s).failures == (own, failure)


def test_a_host_that_comes_back_is_taken_in_when_it_is_steady_and_there_is_room() -> None:
    generation = replace(GENERATION, members=(0, 1))
    mine, follower = says(0, generation, "running"), Heard(says(1, generation, "running"), 0, 9)
    back = {1: follower, 2: Heard(says(2), 0, RULES.rejoin_s)}
    assert review_generation(mine, back, RULES, 0).generation.stage == "draining"
    assert (
        review_generation(mine, {1: follower, 2: Heard(says(2), 0, 1.0)}, RULES, 0).generation.stage
        != "draining"
    )
    assert review_generation(mine, back, replace(RULES, most=2), 0).generation.stage != "draining"


def test_a_host_that_must_go_has_all_save_and_is_not_in_the_next_generation() -> None:
    mine, view = (
        says(0, GENERATION, "running"),
        heard(says(1, GENERATION, "running", leaving=True), says(2, GENERATION, "running")),
    )
    assert review_generation(mine, view, RULES, 0).generation.stage == "draining"
    assert form_generation(mine, view, RULES).members == (0, 2)
    assert may_replace_generation(mine, view, RULES)
    outside = replace(GENERATION, members=(0, 2))
    staying = heard(says(1, None, leaving=True), says(2, outside, "running"))
    assert review_generation(says(0, outside, "running"), staying, RULES, 0).generation.stage != "draining", (
        "it is not taken in again"
    )


def test_a_leader_that_must_go_leaves_the_lead_to_the_next() -> None:
    gone = says(0, GENERATION, "interrupted", leaving=True, has_left=True)
    assert not gone.leads
    assert not may_replace_generation(gone, heard(says(1), says(2)), RULES)
    assert should_lead(says(1, GENERATION), heard(gone, says(2, GENERATION)), RULES, 10)
    assert not should_lead(gone, heard(says(1, GENERATION), says(2, GENERATION)), RULES, 10)


def test_where_too_few_would_stay_nobody_begins_anew() -> None:
    mine, view = (
        says(0, GENERATION, "interrupted"),
        heard(says(1, GENERATION, leaving=True), says(2, GENERATION, leaving=True)),
    )
    assert not may_replace_generation(mine, view, RULES)
    assert may_replace_generation(mine, view, replace(RULES, fewest=1))


def test_workers_start_when_all_members_have_ended_their_old_ones() -> None:
    generation = replace(GENERATION, stage="forming", store_port=0)
    mine, view = working("ready", generation)
    assert is_ready_to_start(mine, view, RULES)
    assert not is_ready_to_start(mine, {1: view[1]}, RULES)
    assert not is_ready_to_start(mine, {**view, 2: Heard(says(2, generation, "waiting"), 0, 9)}, RULES)
    older = replace(generation, number=3)
    assert not is_ready_to_start(mine, {**view, 2: Heard(says(2, older, "ready"), 0, 9)}, RULES)
    assert not is_ready_to_start(replace(mine, generation=GENERATION), view, RULES), "they have"


def test_a_quorum_is_as_many_as_there_must_be() -> None:
    assert has_quorum(says(0), heard(says(1)), RULES)
    assert not has_quorum(says(0), {}, RULES)


def test_heartbeats_survive_the_wire() -> None:
    failure = Failure("ü", is_final=True, is_first_hand=False)
    heartbeat = says(
        1, GENERATION, "failed", failure=failure, pulses={3: (1, 2, 3, 0.5, False)}, stop=2, can_lead=False
    )
    assert parse_heartbeat(dump_heartbeat(heartbeat), 3) == heartbeat


def test_a_fixed_group_does_not_wait_for_a_late_member_once_a_worker_has_failed() -> None:
    """A member that is lost is noticed by its connection, so being late tells nothing."""
    mine, view = working("failed")
    late = {host: replace(each, age_s=RULES.settle_s + 1) for host, each in view.items()}
    fixed = replace(RULES, is_fixed=True)
    assert review_generation(mine, late, fixed, RULES.settle_s).replace_because == "a worker failed"
    assert review_generation(mine, late, RULES, RULES.settle_s).replace_because is None
