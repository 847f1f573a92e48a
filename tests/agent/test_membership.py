"""The rules by which hosts train together: one by one, and all at once in a simulated cluster that is badly treated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echelon.agent.membership import (
    Failure,
    Heard,
    Phase,
    Plan,
    Review,
    Rules,
    Statement,
    View,
    dump_statement,
    find_alive,
    find_plan_to_follow,
    has_quorum,
    is_ready_to_start,
    make_plan,
    may_replace_plan,
    parse_statement,
    review_plan,
    should_lead,
)
from tests.agent.simulation import World

RULES = Rules(num_hosts=3, fewest=2, most=3)
ALL = (0, 1, 2)
PLAN = Plan(4, 0, ALL, port=1234)


def says(host: int, plan: Plan | None = None, phase: Phase = "waiting", **more: Any) -> Statement:
    return Statement(host, frozenset(ALL) - {host}, plan, phase, **more)


def heard(*statements: Statement, age_s: float = 0.0, steady_s: float = 100.0) -> dict[int, Heard]:
    return {statement.host: Heard(statement, age_s, steady_s) for statement in statements}


def working(phase: Phase = "running", plan: Plan = PLAN, **more: Any) -> tuple[Statement, View]:
    """A leader and the two that follow it."""
    return says(0, plan, phase, **more), heard(says(1, plan, phase), says(2, plan, phase))


def test_alive_is_who_is_heard_and_hears_us() -> None:
    silent = Heard(says(1), RULES.silence_s, 0)
    deaf = Heard(Statement(2), 0, 0)
    assert find_alive(0, heard(says(1), says(2)), RULES) == [0, 1, 2]
    assert find_alive(0, {1: silent, 2: Heard(says(2), 0, 0)}, RULES) == [0, 2]
    assert find_alive(0, {1: Heard(says(1), 0, 0), 2: deaf}, RULES) == [0, 1]


@pytest.mark.parametrize(
    ("mine", "theirs", "is_followed"),
    [
        (None, Plan(1, 0, ALL), True),
        (Plan(1, 0, ALL), Plan(2, 0, ALL), True),
        (Plan(2, 0, ALL), Plan(1, 0, ALL), False),
        (Plan(1, 0, ALL), Plan(1, 0, ALL), False),
        (Plan(1, 0, ALL), Plan(1, 0, ALL, port=7), True),
        (Plan(1, 0, ALL, port=7), Plan(1, 0, ALL), False),
        (Plan(1, 0, ALL, port=7), Plan(1, 0, ALL, port=7, drain=True), True),
        (Plan(1, 1, ALL), Plan(1, 0, ALL), True),
    ],
)
def test_the_newest_and_farthest_plan_is_followed(mine: Plan | None, theirs: Plan, is_followed: bool) -> None:
    found = find_plan_to_follow(says(2, mine), heard(says(0, theirs)), RULES)
    assert found == (theirs if is_followed else None)


def test_only_a_living_leaders_own_plan_is_followed() -> None:
    plan = Plan(9, 0, ALL)
    assert find_plan_to_follow(says(2), heard(says(1, plan)), RULES) is None, "hearsay"
    assert find_plan_to_follow(says(2), heard(says(0, plan), age_s=RULES.silence_s), RULES) is None
    assert find_plan_to_follow(says(2), heard(says(0, plan, can_lead=False)), RULES) is None


def test_that_the_run_is_over_is_believed_of_anybody() -> None:
    """Its leader, host 0, has left before host 2 heard it; host 1 has heard it."""
    mine, over = Plan(1, 0, (0, 1, 2), port=1), Plan(1, 0, (0, 1, 2), port=1, over="finished")
    told = Statement(1, sees=frozenset({2}), plan=over)
    assert find_plan_to_follow(Statement(2, plan=mine), {1: Heard(told, 0.0, 99.0)}, RULES) == over
    older = Statement(2, plan=replace(mine, number=2))
    assert find_plan_to_follow(older, {1: Heard(told, 0.0, 99.0)}, RULES) is None, "of an earlier generation"


def test_the_first_of_enough_hosts_leads_where_nobody_does() -> None:
    plan = Plan(3, 0, ALL)
    others = heard(says(1, plan), says(2, plan))
    assert should_lead(says(1, plan), heard(says(2, plan)), RULES, RULES.settle_s)
    assert not should_lead(says(1, plan), heard(says(2, plan)), RULES, 0.0), "it waits for a moment"
    assert not should_lead(says(2, plan), heard(says(1, plan)), RULES, 100), "not the first"
    assert not should_lead(says(1, plan), heard(says(0, plan), says(2, plan)), RULES, 100), "somebody leads"
    assert not should_lead(says(1, plan), {}, RULES, 100), "alone"
    assert not should_lead(says(0, plan, can_lead=False), others, RULES, 100)
    assert should_lead(says(1), heard(says(0, can_lead=False), says(2)), RULES, 100), "the first that can"


def test_the_first_generation_waits_for_all_hosts_or_for_long() -> None:
    assert should_lead(says(0), heard(says(1), says(2)), RULES, 0.0)
    assert not should_lead(says(0), heard(says(1)), RULES, RULES.start_s - 1)
    assert should_lead(says(0), heard(says(1)), RULES, RULES.start_s)


def test_a_new_plan_has_a_higher_number_than_any_that_was_heard_of() -> None:
    seen = heard(says(1, Plan(7, 1, ALL)), says(2, Plan(5, 1, ALL)))
    assert make_plan(says(0, Plan(6, 0, ALL)), seen, RULES) == Plan(8, 0, ALL)
    assert make_plan(says(0), {}, RULES) == Plan(1, 0, (0,))


def test_a_plan_has_no_more_hosts_than_allowed_and_its_leader_always() -> None:
    assert make_plan(says(2), heard(says(0), says(1)), replace(RULES, most=2)).members == (0, 2)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ("running", "running", Review(PLAN)),
        ("finished", "running", Review(PLAN)),
        ("finished", "finished", Review(replace(PLAN, over="finished"))),
        ("interrupted", "finished", Review(PLAN, "the workers left")),
        ("failed", "running", Review(PLAN, "a worker failed")),
        ("ready", "ready", Review(PLAN)),
    ],
)
def test_what_a_leader_makes_of_its_members_phases(mine: Phase, theirs: Phase, expected: Review) -> None:
    statements = heard(says(1, PLAN, theirs), says(2, PLAN, theirs))
    assert review_plan(says(0, PLAN, mine), statements, RULES, RULES.settle_s) == expected


def test_a_lost_member_and_a_members_wish_to_stop() -> None:
    mine, view = working()
    assert review_plan(mine, {1: view[1]}, RULES, 0).replace_because == "a host is lost"
    asked = {**view, 2: Heard(says(2, PLAN, "running", stop=1), 0, 9)}
    assert review_plan(mine, asked, RULES, 0).plan.drain
    told = {**view, 2: Heard(says(2, PLAN, "running", stop=2), 0, 9)}
    assert review_plan(mine, told, RULES, 0).plan.over == "interrupted"
    mine, view = working("interrupted", stop=1)
    assert review_plan(mine, view, RULES, 0).plan.over == "interrupted"


def test_a_member_whose_agent_was_started_anew_has_lost_its_workers() -> None:
    mine, view = working()
    again = {**view, 2: Heard(says(2, PLAN, "waiting"), 0, 9)}
    assert review_plan(mine, again, RULES, 0).replace_because == "a host is lost"
    unbegun = replace(PLAN, port=0)
    mine, view = working("waiting", unbegun)
    assert review_plan(mine, view, RULES, 0) == Review(unbegun)


def test_a_leader_outdoes_a_greater_plan_that_nobody_leads() -> None:
    """Of the same number, made by a host that did not hear of this one and was then started anew."""
    plan, greater = Plan(6, 1, ALL), Plan(6, 0, ALL)
    mine, follower = says(1, plan, "ready"), says(2, greater, "failed")
    assert review_plan(mine, heard(says(0, plan), follower), RULES, 0).replace_because == "a host is lost"
    mine = replace(mine, plan=replace(plan, members=(1, 2)))
    gone = replace(follower, sees=frozenset({1}))
    assert review_plan(mine, heard(gone), RULES, 0).replace_because == "a host is lost"
    assert review_plan(mine, heard(follower), RULES, 0).replace_because is None, "it hears that leader"


def test_a_failure_is_not_judged_before_others_had_time_to_fail_or_fall_silent() -> None:
    mine, view = working()
    failure = Failure("it broke", is_final=False, is_first_hand=False)
    own = Failure("out of memory", is_final=False, is_first_hand=True)
    failed = {1: Heard(says(1, PLAN, "failed", failure=failure), 0, 9), 2: view[2]}
    assert review_plan(mine, failed, RULES, 0.0) == Review(PLAN)
    assert review_plan(mine, failed, RULES, RULES.settle_s) == Review(PLAN, "a worker failed", (failure,))
    late = {**failed, 2: Heard(view[2].statement, RULES.settle_s + 0.1, 9)}
    assert review_plan(mine, late, RULES, RULES.settle_s) == Review(PLAN)
    both = {**failed, 2: Heard(says(2, PLAN, "failed", failure=own), 0, 9)}
    assert review_plan(mine, both, RULES, RULES.settle_s).failures == (own, failure)


def test_a_host_that_comes_back_is_taken_in_when_it_is_steady_and_there_is_room() -> None:
    plan = replace(PLAN, members=(0, 1))
    mine, follower = says(0, plan, "running"), Heard(says(1, plan, "running"), 0, 9)
    back = {1: follower, 2: Heard(says(2), 0, RULES.rejoin_s)}
    assert review_plan(mine, back, RULES, 0).plan.drain
    assert not review_plan(mine, {1: follower, 2: Heard(says(2), 0, 1.0)}, RULES, 0).plan.drain
    assert not review_plan(mine, back, replace(RULES, most=2), 0).plan.drain


def test_a_host_that_must_go_has_all_save_and_is_not_in_the_next_plan() -> None:
    mine, view = (
        says(0, PLAN, "running"),
        heard(says(1, PLAN, "running", leaving=True), says(2, PLAN, "running")),
    )
    assert review_plan(mine, view, RULES, 0).plan.drain
    assert make_plan(mine, view, RULES).members == (0, 2)
    assert may_replace_plan(mine, view, RULES)
    outside = replace(PLAN, members=(0, 2))
    staying = heard(says(1, None, leaving=True), says(2, outside, "running"))
    assert not review_plan(says(0, outside, "running"), staying, RULES, 0).plan.drain, (
        "it is not taken in again"
    )


def test_a_leader_that_must_go_leaves_the_lead_to_the_next() -> None:
    gone = says(0, PLAN, "interrupted", leaving=True, has_left=True)
    assert not gone.leads
    assert not may_replace_plan(gone, heard(says(1), says(2)), RULES)
    assert should_lead(says(1, PLAN), heard(gone, says(2, PLAN)), RULES, 10)
    assert not should_lead(gone, heard(says(1, PLAN), says(2, PLAN)), RULES, 10)


def test_where_too_few_would_stay_nobody_begins_anew() -> None:
    mine, view = says(0, PLAN, "interrupted"), heard(says(1, PLAN, leaving=True), says(2, PLAN, leaving=True))
    assert not may_replace_plan(mine, view, RULES)
    assert may_replace_plan(mine, view, replace(RULES, fewest=1))


def test_workers_start_when_all_members_have_ended_their_old_ones() -> None:
    plan = replace(PLAN, port=0)
    mine, view = working("ready", plan)
    assert is_ready_to_start(mine, view, RULES)
    assert not is_ready_to_start(mine, {1: view[1]}, RULES)
    assert not is_ready_to_start(mine, {**view, 2: Heard(says(2, plan, "waiting"), 0, 9)}, RULES)
    older = replace(plan, number=3)
    assert not is_ready_to_start(mine, {**view, 2: Heard(says(2, older, "ready"), 0, 9)}, RULES)
    assert not is_ready_to_start(replace(mine, plan=PLAN), view, RULES), "they have"


def test_a_quorum_is_as_many_as_there_must_be() -> None:
    assert has_quorum(says(0), heard(says(1)), RULES)
    assert not has_quorum(says(0), {}, RULES)


def test_statements_survive_the_wire() -> None:
    failure = Failure("ü", is_final=True, is_first_hand=False)
    statement = says(1, PLAN, "failed", failure=failure, pulses={3: (1, 2, 3, 0.5)}, stop=2, can_lead=False)
    assert parse_statement(dump_statement(statement), 3) == statement


def live_through(seed: int, num_hosts: int) -> World:
    """A minute of harm; then all living hosts work together before long, and finish."""
    world = World(seed, num_hosts)
    next_harm = 5.0
    while world.now < 65.0:
        if world.now >= next_harm:
            world.do_harm()
            next_harm = world.now + world.random.uniform(0.2, 12.0)
        world.pass_time()
    world.end_harm()
    wait_until(world, World.is_one_generation, patience_s=300)
    world.may_finish = True
    wait_until(world, lambda world: all(agent.is_over for agent in world.agents.values()), patience_s=30)
    orders = {agent.mine.plan.order for agent in world.agents.values() if agent.mine.plan}
    overs = {agent.mine.plan.over for agent in world.agents.values() if agent.mine.plan}
    assert len(orders) == 1
    assert overs == {"finished"}
    return world


def wait_until(world: World, is_so: Any, patience_s: float) -> None:
    deadline = world.now + patience_s
    while not is_so(world):
        assert world.now < deadline, (
            f"seed {world.seed}, {world.num_hosts} hosts, {world.now:.1f} s: "
            f"{[(agent.mine, agent.workers) for agent in world.agents.values()]}"
        )
        world.pass_time()


@pytest.mark.parametrize("num_hosts", [3, 4, 5])
def test_whatever_happens_one_generation_works_and_in_the_end_all_living_hosts_are_in_it(
    num_hosts: int,
) -> None:
    worlds = [live_through(seed, num_hosts) for seed in range(6)]
    assert max(world.most_at_work for world in worlds) == num_hosts


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [3, 4, 5])
def test_a_hundred_clusters_live_through_harm(num_hosts: int) -> None:
    for seed in range(100, 200):
        live_through(seed, num_hosts)
