"""How often workers are started again."""

from __future__ import annotations

from echelon.agent.generation import Generation
from echelon.agent.restarts import GiveUp, Restart, RestartPolicy
from echelon.agent.spec import HostSpec

POLICY = RestartPolicy(max_restarts=2, window_s=60.0)


def test_failures_are_followed_by_restarts_up_to_the_bound() -> None:
    assert POLICY.decide([5.0], 5.0, is_final=False) == Restart(1)
    assert POLICY.decide([5.0, 6.0], 6.0, is_final=False) == Restart(2)
    assert POLICY.decide([5.0, 6.0, 7.0], 7.0, is_final=False) == GiveUp(2)


def test_restarts_before_the_window_do_not_count() -> None:
    assert POLICY.decide([5.0, 6.0, 64.9], 64.9, is_final=False) == GiveUp(2)
    assert POLICY.decide([5.0, 6.0, 65.0], 65.0, is_final=False) == Restart(2)
    assert POLICY.decide([5.0, 6.0, 7.0, 1000.0], 1000.0, is_final=False) == Restart(1)


def test_no_restarts_means_none() -> None:
    assert RestartPolicy(0, 60.0).decide([5.0], 5.0, is_final=False) == GiveUp(0)


def test_a_final_failure_is_not_tried_again() -> None:
    assert POLICY.decide([6.0], 6.0, is_final=True) == GiveUp(0)
    assert POLICY.decide([5.0, 6.0], 6.0, is_final=True) == GiveUp(1)


def test_an_error_says_what_was_tried() -> None:
    assert POLICY.describe(GiveUp(0)) == ""
    assert POLICY.describe(GiveUp(1)) == " after 1 restart within 1 minutes"
    assert RestartPolicy(3, 3600.0).describe(GiveUp(3)) == " after 3 restarts within 60 minutes"


def test_a_range_loses_a_worker_a_failure_down_to_its_fewest() -> None:
    host = HostSpec("a", "127.0.0.1", "lo", 4, fewest_workers=2)
    lost = [host.workers_in(Generation(1, 0, (0,), workers_lost=failures)) for failures in range(4)]
    assert lost == [4, 3, 2, 2]
    assert HostSpec("a", "127.0.0.1", "lo", 4).workers_in(Generation(1, 0, (0,), workers_lost=1)) == 4
