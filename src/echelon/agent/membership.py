"""Which hosts train together, decided by each agent from what it hears of the others.

Agents tell each other the whole of what they know and do, again and again (a `Statement`); there are no orders, so none
can be lost, come late or come twice. One of them leads: it writes the `Plan` of a generation, the others follow the
newest plan they hear. A plan goes through these stages:

    made         members end the workers of earlier generations, and say that they are ready
    port         all are ready: the leader's store listens on this port, and members start their workers
    drain        workers save and leave: somebody wants to stop, a host has come back and is taken in, or one must go
    over         the run has ended: finished, interrupted or failed

A new plan with a higher number replaces it when a member falls silent, a worker fails, or a host comes back. Where the
leader falls silent, the first of the hosts that still hear each other leads, if they are enough. A host that hears too
few others ends its workers. Everything here is a pure function of statements and of how old they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import TypeAdapter

Phase = Literal["waiting", "ready", "running", "finished", "interrupted", "failed"]
"""Of one host in its plan: no workers and none wanted; none, but may begin; at work; ended well; saved and left;
ended with a failure."""
Over = Literal["", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Plan:
    """A generation: a fixed list of hosts that work together, and how far it has got."""

    number: int
    leader: int
    members: tuple[int, ...]
    port: int = 0
    drain: bool = False
    hung: int = -1
    """The rank of a worker that the leader found hanging."""
    over: Over = ""
    reason: str = ""
    """Why the run has failed."""

    @property
    def order(self) -> tuple[int, int]:
        """Of two plans the greater counts."""
        return self.number, -self.leader

    @property
    def progress(self) -> tuple[bool, bool, bool, int]:
        """Grows as the plan gets on."""
        return bool(self.over), self.drain, bool(self.port), self.hung


@dataclass(frozen=True)
class Failure:
    """What went wrong with a worker, as its host saw it."""

    message: str
    is_final: bool
    """No restart can help."""
    is_first_hand: bool
    """The worker's own fault, as far as its host can tell, not that of a connection which broke."""


@dataclass(frozen=True)
class Statement:
    """All that one agent tells the others."""

    host: int
    sees: frozenset[int] = frozenset()
    """The hosts that it hears."""
    plan: Plan | None = None
    """The plan it leads or follows."""
    phase: Phase = "waiting"
    stop: Literal[0, 1, 2] = 0
    """1: its user wants the run to save and leave; 2: to end at once."""
    can_lead: bool = True
    """False where it has lost the shared run folder."""
    leaving: bool = False
    """Its machine is about to be taken away: the others are to go on without it, from where it leaves."""
    has_left: bool = False
    """It led, has seen all workers save, and leads no more."""
    failure: Failure | None = None
    pulses: dict[int, tuple[int, int, int, float]] = field(default_factory=dict)
    """Of each of its workers, by rank: beats, turns, step, seconds of silence (monitor/heartbeat.py)."""

    @property
    def leads(self) -> bool:
        return self.plan is not None and self.plan.leader == self.host and self.can_lead and not self.has_left


@dataclass(frozen=True)
class Heard:
    """The newest statement of another host."""

    statement: Statement
    age_s: float
    steady_s: float
    """For how long it has been heard without a gap."""


View = Mapping[int, Heard]


@dataclass(frozen=True)
class Rules:
    """How many hosts there must be, and how long to wait for what."""

    num_hosts: int
    fewest: int
    most: int
    silence_s: float = 5.0
    """A host that is not heard for this long is lost."""
    start_s: float = 30.0
    """How long the first generation waits for all hosts; then for as many as there must be."""
    rejoin_s: float = 3.0
    """How long a host must be heard again before it is taken in."""
    settle_s: float = 1.0
    """After a failure: how long to listen for what else has failed, and whose fault it was."""


_AT_ONCE = 2


def find_alive(me: int, view: View, rules: Rules) -> list[int]:
    """The hosts that this one hears and that hear it, in order; this one too."""
    others = [
        host for host, heard in view.items() if heard.age_s < rules.silence_s and me in heard.statement.sees
    ]
    return sorted([me, *others])


def find_plan_to_follow(mine: Statement, view: View, rules: Rules) -> Plan | None:
    """The newest plan of a living leader, if it is newer than, or further than, the one followed so far.

    That the run is over is believed of anybody: its leader may have left before all had heard.
    """
    alive = find_alive(mine.host, view, rules)
    said = [heard.statement for host, heard in view.items() if host in alive]
    plans = [s.plan for s in said if s.plan is not None and (s.leads or s.plan.over)]
    best = max(plans, key=lambda plan: (plan.order, plan.progress), default=None)
    if best is None or mine.plan is None:
        return best
    is_newer = best.order > mine.plan.order
    is_further = best.order == mine.plan.order and best.progress > mine.plan.progress
    return best if is_newer or is_further else None


def should_lead(mine: Statement, view: View, rules: Rules, waited_s: float) -> bool:
    """Whether it falls to this host to make a plan: nobody else does, it is the first, and enough hosts are there.

    `waited_s` is for how long the living hosts have been the same ones, without a leader.
    """
    alive = find_alive(mine.host, view, rules)
    statements = {host: view[host].statement for host in alive if host != mine.host}
    said = {**statements, mine.host: mine}
    able = [host for host, statement in said.items() if statement.can_lead and not statement.leaving]
    has_leader = any(statement.leads for statement in said.values())
    if (
        has_leader
        or mine.host != min(able, default=-1)
        or len(_find_staying(mine, view, rules)) < rules.fewest
    ):
        return False
    is_first_plan = mine.plan is None and all(statement.plan is None for statement in statements.values())
    patience_s = rules.start_s if is_first_plan else rules.settle_s
    return len(alive) == rules.num_hosts or waited_s >= patience_s


def make_plan(mine: Statement, view: View, rules: Rules) -> Plan:
    """A new generation of the hosts that are there, led by this one."""
    seen = [heard.statement.plan for heard in view.values()] + [mine.plan]
    number = 1 + max((plan.number for plan in seen if plan), default=0)
    others = [host for host in _find_staying(mine, view, rules) if host != mine.host][: rules.most - 1]
    return Plan(number, mine.host, tuple(sorted([mine.host, *others])))


Replace = Literal["a host is lost", "a worker failed", "the workers left"]


@dataclass(frozen=True)
class Review:
    """What a leader makes of its generation."""

    plan: Plan
    """As it was, or further."""
    replace_because: Replace | None = None
    """A new plan is to be made."""
    failures: tuple[Failure, ...] = ()
    """What the members' workers failed of, the likeliest cause first."""


def review_plan(mine: Statement, view: View, rules: Rules, trouble_s: float) -> Review:
    """How this leader's plan goes on; `trouble_s` is for how long a member has been failed, interrupted or late."""
    plan = mine.plan
    assert plan is not None
    alive = find_alive(mine.host, view, rules)
    said = {host: view[host].statement for host in alive if host in plan.members and host != mine.host}
    said[mine.host] = mine
    following = {host: s for host, s in said.items() if s.plan and s.plan.order == plan.order}
    phases = {host: following[host].phase for host in following}
    stop = max([mine.stop, *(view[host].statement.stop for host in alive if host != mine.host)])
    if stop == _AT_ONCE:
        return Review(replace(plan, over="interrupted"))
    is_lost = any(host not in said for host in plan.members)
    was_started_anew = plan.port and "waiting" in phases.values()  # its workers ended with its agent
    if is_lost or was_started_anew or _is_outdone_by_an_orphan(plan, view, alive):
        return Review(plan, "a host is lost")
    failed = [host for host, phase in phases.items() if phase == "failed"]
    if failed and trouble_s >= rules.settle_s and not _is_anybody_late(plan, view, rules):
        return Review(plan, "a worker failed", _sorted_failures(following, failed))
    if len(phases) < len(plan.members) or failed:
        return Review(plan)
    if set(phases.values()) == {"finished"}:
        return Review(replace(plan, over="finished"))
    if stop and "running" not in phases.values():
        return Review(replace(plan, over="interrupted"))
    if set(phases.values()) <= {"interrupted", "finished"}:
        return Review(plan, "the workers left")
    if set(phases.values()) == {"ready"}:
        return Review(plan)
    if stop or _find_joiners(plan, view, alive, rules) or any(s.leaving for s in following.values()):
        return Review(replace(plan, drain=True))
    return Review(plan)


def is_ready_to_start(mine: Statement, view: View, rules: Rules) -> bool:
    """Whether all members of this leader's plan have ended their old workers."""
    plan = mine.plan
    assert plan is not None
    said = {host: heard.statement for host, heard in view.items() if heard.age_s < rules.silence_s}
    said[mine.host] = mine
    return not plan.port and all(
        host in said
        and said[host].phase == "ready"
        and (followed := said[host].plan) is not None
        and followed.order == plan.order
        for host in plan.members
    )


def may_replace_plan(mine: Statement, view: View, rules: Rules) -> bool:
    """Whether a leader whose generation has ended may make the next one: it stays, and enough others do."""
    return not mine.leaving and len(_find_staying(mine, view, rules)) >= rules.fewest


def has_quorum(mine: Statement, view: View, rules: Rules) -> bool:
    """Whether this host hears enough others for its workers to go on."""
    return len(find_alive(mine.host, view, rules)) >= rules.fewest


def _is_outdone_by_an_orphan(plan: Plan, view: View, alive: list[int]) -> bool:
    """Whether somebody holds a greater plan that nobody leads any more, and so will not follow this one."""
    theirs = [view[host].statement for host in alive if host in view]
    return any(
        other.plan is not None
        and other.plan.order > plan.order
        and (other.plan.leader in alive or other.plan.leader not in other.sees)
        for other in theirs
    )


def _is_anybody_late(plan: Plan, view: View, rules: Rules) -> bool:
    """Whether a member has not been heard for a moment: if it is lost, that is what the others' workers failed of."""
    return any(rules.settle_s < view[host].age_s < rules.silence_s for host in plan.members if host in view)


def _find_joiners(plan: Plan, view: View, alive: list[int], rules: Rules) -> list[int]:
    if len(plan.members) >= rules.most:
        return []
    outside = [host for host in alive if host not in plan.members and not view[host].statement.leaving]
    return [host for host in outside if view[host].steady_s >= rules.rejoin_s]


def _find_staying(mine: Statement, view: View, rules: Rules) -> list[int]:
    """The living hosts that are not about to go; this one too."""
    alive = find_alive(mine.host, view, rules)
    return [host for host in alive if host == mine.host or not view[host].statement.leaving]


def _sorted_failures(said: Mapping[int, Statement], failed: list[int]) -> tuple[Failure, ...]:
    failures = [failure for host in sorted(failed) if (failure := said[host].failure)]
    return tuple(sorted(failures, key=lambda failure: (not failure.is_final, not failure.is_first_hand)))


_STATEMENT = TypeAdapter(Statement)


def dump_statement(statement: Statement) -> bytes:
    """A statement as JSON."""
    return _STATEMENT.dump_json(statement)


def parse_statement(text: bytes, num_hosts: int) -> Statement:
    """What `dump_statement` made, about a run of so many hosts; ValueError for anything else."""
    statement = _STATEMENT.validate_json(text)
    plan = statement.plan
    named = {statement.host, *statement.sees, *((plan.leader, *plan.members) if plan else ())}
    if not named <= set(range(num_hosts)):
        raise ValueError("it names hosts that are none of this run's")
    if plan and not _is_possible(plan):
        raise ValueError("no agent makes such a plan")
    return statement


def _is_possible(plan: Plan) -> bool:
    """Whether a plan is one that `make_plan` could have begun."""
    is_sorted = plan.members == tuple(sorted(set(plan.members)))
    return is_sorted and plan.leader in plan.members and plan.number > 0 and 0 <= plan.port < 2**16
