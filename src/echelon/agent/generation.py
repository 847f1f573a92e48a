"""Which hosts train together: pure rules over the heartbeats that agents send each other.

Every agent repeats all that it knows and does in a `Heartbeat`. There are no orders, so none can be lost, delayed or
duplicated. One agent leads: it forms a `Generation` of hosts, and the others follow the newest generation they hear of.
A generation goes through these stages:

    forming      members end the workers of earlier generations, and report that they are ready
    running      the leader's store listens on `store_port`, and members start their workers
    draining     workers save and leave: somebody stops the run, a host has come back and is taken in, or one must go
    ended        the run has finished, was interrupted, or has failed

A generation with a higher number replaces it if a member falls silent, a worker fails, or a host comes back. If the
leader falls silent, the first of the hosts that still hear each other takes over, provided they are enough. A host that
hears too few others ends its workers. decision.py applies these rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from echelon.agent.ranges import format_ranges, parse_ranges

HostPhase = Literal["waiting", "ready", "running", "finished", "interrupted", "failed"]
"""Of one host in its generation: no workers and none wanted; none, but may start; at work; ended well; saved and left;
ended with a failure."""
Pulses = dict[int, tuple[int, int, int, float, bool]]
"""By rank (monitor/heartbeat.py)."""
GenerationStage = Literal["forming", "running", "draining", "ended"]
OutcomeName = Literal["finished", "interrupted", "failed"]
HostSet = Annotated[frozenset[int], PlainSerializer(format_ranges), BeforeValidator(parse_ranges)]
Members = Annotated[tuple[int, ...], PlainSerializer(format_ranges), BeforeValidator(parse_ranges)]
"""Written in a few characters even for a thousand hosts: "0-41,43-999"."""
_STAGES: tuple[GenerationStage, ...] = ("forming", "running", "draining", "ended")


@dataclass(frozen=True)
class Generation:
    """A fixed set of hosts that work together, and how far they have got."""

    number: int
    leader: int
    members: Members
    stage: GenerationStage = "forming"
    store_port: int = 0
    hung_rank: int = -1
    """A worker that the leader found hanging."""
    outcome: OutcomeName | None = None
    """Set in the last stage."""
    reason: str = ""
    """Why the run has failed."""
    is_final: bool = False
    """It has failed, and starting it again would not help."""
    workers_lost: int = 0
    """How many workers every host has given up after failures, as far as its range allows (`HostSpec.workers_in`)."""

    @property
    def order(self) -> tuple[int, int]:
        """Compares generations: the one with the greater order counts."""
        return self.number, -self.leader

    @property
    def progress(self) -> tuple[int, int]:
        """Grows from stage to stage."""
        return _STAGES.index(self.stage), self.hung_rank

    def end(self, outcome: OutcomeName, reason: str = "", *, is_final: bool = False) -> Generation:
        return replace(self, stage="ended", outcome=outcome, reason=reason, is_final=is_final)


@dataclass(frozen=True)
class Failure:
    """What went wrong with a worker, as seen on its host."""

    summary: str
    is_final: bool
    """No restart can help."""
    is_first_hand: bool
    """The worker's own fault, as far as its host can tell, rather than a connection that broke."""
    details: str = ""
    """What follows the summary: the worker's own message, its log and the log's last lines."""
    rank: int = -1
    exit_code: int = 0
    failed_at: float = 0.0
    """Seconds since the epoch, by the host's clock; 0 if the worker died without a word."""
    survivors: int = 0
    """How many of the host's workers have kept their weights, and wait for another group."""

    @property
    def message(self) -> str:
        return self.summary + self.details


@dataclass(frozen=True)
class Heartbeat:
    """All that one agent tells the others."""

    host: int
    sees: HostSet = frozenset()
    """The hosts that it hears itself."""
    generation: Generation | None = None
    """The one that it leads or follows."""
    phase: HostPhase = "waiting"
    stop: Literal[0, 1, 2] = 0
    """1: its user wants the run to save and leave; 2: to end at once."""
    can_lead: bool = True
    """False if it has lost the shared run folder."""
    leaving: bool = False
    """Its machine is about to be taken away: the others are to continue without it, from where it leaves."""
    has_left: bool = False
    """It led, has seen all workers save, and leads no more."""
    failure: Failure | None = None
    pulses: Pulses = field(default_factory=dict)
    """Each worker's beats, turns, step, silence in seconds, and whether it is stopped (monitor/heartbeat.py)."""
    is_led: bool = False
    """It hears its generation's leader, which hears enough hosts."""

    @property
    def leads(self) -> bool:
        is_leader = self.generation is not None and self.generation.leader == self.host
        return is_leader and self.can_lead and not self.has_left


@dataclass(frozen=True)
class Heard:
    """The newest heartbeat of another host."""

    heartbeat: Heartbeat
    age_s: float
    steady_s: float
    """For how long it has been heard without a gap."""


HeardHosts = Mapping[int, Heard]


@dataclass(frozen=True)
class Rules:
    """How many hosts there must be, and how long to wait for each event."""

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
    """After a failure: how long to wait for further failures, to find the cause among them."""
    is_fixed: bool = False
    """No host can be replaced: the run fails if one is lost. Host 0 leads, and the others hear it alone (star.py)."""


_AT_ONCE = 2
LEADER = 0
"""The host that leads a fixed group."""
KILLED = "the workers were killed before they had saved; the same command resumes from the last checkpoint"
NOT_STARTED = (
    "stopped while the workers were being restarted; the same command resumes from the last checkpoint"
)


def find_alive(me: int, view: HeardHosts, rules: Rules) -> list[int]:
    """Return the hosts that this one hears and that hear it, and this one, in order."""
    others = [
        host for host, heard in view.items() if heard.age_s < rules.silence_s and me in heard.heartbeat.sees
    ]
    return sorted({me, *others})


def find_present(mine: Heartbeat, view: HeardHosts, rules: Rules) -> frozenset[int]:
    """Return the hosts that are there, as far as this one knows.

    Hubs vouch for those that they hear (topology.py). A leader takes no one's word: it leads only hosts that it hears
    itself.
    """
    alive = find_alive(mine.host, view, rules)
    said = [] if mine.leads else [view[host].heartbeat for host in alive if host != mine.host]
    return frozenset(alive).union(*(heartbeat.sees for heartbeat in said))


def is_led(mine: Heartbeat, view: HeardHosts, rules: Rules) -> bool:
    """Whether this host's generation has a leader who is heard, and who hears enough hosts."""
    if mine.generation is None or mine.generation.leader not in find_alive(mine.host, view, rules):
        return False
    leader = mine if mine.generation.leader == mine.host else view[mine.generation.leader].heartbeat
    return leader.leads and len(leader.sees) + 1 >= rules.fewest


def find_generation_to_follow(mine: Heartbeat, view: HeardHosts, rules: Rules) -> Generation | None:
    """Return the newest generation of a living leader, if it is newer than, or ahead of, the one followed so far.

    Any host is believed that the run has ended: the leader may have left before all had heard. In a fixed group the
    leader's last word counts though it is gone.
    """
    alive = find_alive(mine.host, view, rules)
    said = [heard.heartbeat for host, heard in view.items() if host in alive or rules.is_fixed]
    offers = [s.generation for s in said if s.generation and (s.leads or s.generation.stage == "ended")]
    best = max(offers, key=lambda generation: (generation.order, generation.progress), default=None)
    if best is None or mine.generation is None:
        return best
    is_newer = best.order > mine.generation.order
    is_ahead = best.order == mine.generation.order and best.progress > mine.generation.progress
    return best if is_newer or is_ahead else None


def should_lead(mine: Heartbeat, view: HeardHosts, rules: Rules, waited_s: float) -> bool:
    """Whether this hub is to form a generation: nobody leads, it is the first that can, and enough hosts are there.

    `waited_s` is for how long the living hosts have been the same ones.
    """
    if rules.is_fixed and mine.host != LEADER:
        return False
    alive = find_alive(mine.host, view, rules)
    others = {host: view[host].heartbeat for host in alive if host != mine.host}
    said = {**others, mine.host: mine}
    able = [host for host, heartbeat in said.items() if heartbeat.can_lead and not heartbeat.leaving]
    is_led = any(heartbeat.leads or heartbeat.is_led for heartbeat in others.values())
    if is_led or mine.leads or mine.host != min(able, default=-1):
        return False
    if len(_find_staying(mine, view, rules)) < rules.fewest:
        return False
    is_first = mine.generation is None and all(other.generation is None for other in others.values())
    patience_s = rules.start_s if is_first else rules.settle_s
    return len(alive) == rules.num_hosts or waited_s >= patience_s


def form_generation(mine: Heartbeat, view: HeardHosts, rules: Rules) -> Generation:
    """Return a new generation of the hosts that are there, led by this one."""
    seen = [heard.heartbeat.generation for heard in view.values()] + [mine.generation]
    number = 1 + max((generation.number for generation in seen if generation), default=0)
    others = [host for host in _find_staying(mine, view, rules) if host != mine.host][: rules.most - 1]
    return Generation(number, mine.host, tuple(sorted([mine.host, *others])))


Replace = Literal["a host is lost", "a worker failed", "the workers left"]


@dataclass(frozen=True)
class Review:
    """A leader's verdict on its generation."""

    generation: Generation
    """The generation as it was, or in a later stage."""
    replace_because: Replace | None = None
    """Why a new generation must be formed; None if it need not be."""
    failures: tuple[Failure, ...] = ()
    """Why the members' workers failed, the likeliest cause first."""


def review_generation(mine: Heartbeat, view: HeardHosts, rules: Rules, trouble_s: float) -> Review:
    """Judge the generation that this host leads; `trouble_s` is for how long a member's workers have been down."""
    generation = mine.generation
    assert generation is not None
    alive = find_alive(mine.host, view, rules)
    said = {host: view[host].heartbeat for host in alive if host in generation.members and host != mine.host}
    said[mine.host] = mine
    following = {h: s for h, s in said.items() if s.generation and s.generation.order == generation.order}
    phases = {host: following[host].phase for host in following}
    stop = max([mine.stop, *(view[host].heartbeat.stop for host in alive if host != mine.host)])
    if stop == _AT_ONCE and rules.is_fixed and "running" in phases.values():
        return Review(generation.end("failed", KILLED))
    if stop == _AT_ONCE:
        return Review(generation.end("interrupted"))
    is_lost = any(host not in said for host in generation.members)
    # An agent that was started again has no workers: they ended with the agent before it.
    was_restarted = generation.stage != "forming" and "waiting" in phases.values()
    is_superseded = _is_superseded_by_an_orphan(generation, view, alive)
    if stop and (is_lost or was_restarted) and not is_superseded and not rules.is_fixed:
        return Review(generation.end("interrupted"))  # a new generation would have nothing to save
    if is_lost or was_restarted or is_superseded:
        return Review(generation, "a host is lost")
    # In a fixed group, a process that is lost is noticed by its connection.
    is_settled = trouble_s >= rules.settle_s and (
        rules.is_fixed or not _is_any_member_late(generation, view, rules)
    )
    has_joiners = bool(_find_joiners(generation, view, alive, rules))
    return _review_phases(
        generation, following, rules, is_settled=is_settled, stop=bool(stop), has_joiners=has_joiners
    )


def _review_phases(
    generation: Generation,
    following: Mapping[int, Heartbeat],
    rules: Rules,
    *,
    is_settled: bool,
    stop: bool,
    has_joiners: bool,
) -> Review:
    """Judge a generation whose members are all there; `is_settled`: whatever else fails has had time to."""
    phases = [heartbeat.phase for heartbeat in following.values()]
    failed = [host for host, heartbeat in following.items() if heartbeat.phase == "failed"]
    if failed and is_settled:
        return Review(generation, "a worker failed", _sort_failures(following, failed))
    if len(phases) < len(generation.members) or failed:
        return Review(generation)
    if set(phases) == {"finished"}:
        return Review(generation.end("finished"))
    have_left = set(phases) <= {"interrupted", "finished"}
    if have_left and (stop or rules.is_fixed):
        return Review(generation.end("interrupted"))
    if stop and "running" not in phases:
        return Review(generation.end("interrupted", NOT_STARTED if rules.is_fixed else ""))
    if have_left:
        return Review(generation, "the workers left")
    if generation.stage != "running" or set(phases) == {"ready"}:
        return Review(generation)
    if stop or has_joiners or any(heartbeat.leaving for heartbeat in following.values()):
        return Review(replace(generation, stage="draining"))
    return Review(generation)


def is_ready_to_start(mine: Heartbeat, view: HeardHosts, rules: Rules) -> bool:
    """Whether all members of this leader's generation have ended their old workers."""
    generation = mine.generation
    assert generation is not None
    said = {host: heard.heartbeat for host, heard in view.items() if heard.age_s < rules.silence_s}
    said[mine.host] = mine
    return generation.stage == "forming" and all(
        host in said
        and said[host].phase == "ready"
        and (followed := said[host].generation) is not None
        and followed.order == generation.order
        for host in generation.members
    )


def may_replace_generation(mine: Heartbeat, view: HeardHosts, rules: Rules) -> bool:
    """Whether a leader whose generation has ended may form the next one: it stays, and enough others do."""
    return not mine.leaving and len(_find_staying(mine, view, rules)) >= rules.fewest


def has_quorum(mine: Heartbeat, view: HeardHosts, rules: Rules) -> bool:
    """Whether enough hosts are there for this one's workers to continue."""
    return len(find_present(mine, view, rules)) >= rules.fewest


def _is_superseded_by_an_orphan(generation: Generation, view: HeardHosts, alive: list[int]) -> bool:
    """Whether a host holds a greater generation that has lost its leader, and so will not follow this one."""
    theirs = [view[host].heartbeat for host in alive if host in view]
    return any(
        other.generation is not None and other.generation.order > generation.order and not other.is_led
        for other in theirs
    )


def _is_any_member_late(generation: Generation, view: HeardHosts, rules: Rules) -> bool:
    """Whether a member has just fallen silent: if it is lost, that is why the others' workers failed."""
    ages = [view[host].age_s for host in generation.members if host in view]
    return any(rules.settle_s < age_s < rules.silence_s for age_s in ages)


def _find_joiners(generation: Generation, view: HeardHosts, alive: list[int], rules: Rules) -> list[int]:
    if len(generation.members) >= rules.most:
        return []
    outside = [h for h in alive if h not in generation.members and not view[h].heartbeat.leaving]
    return [host for host in outside if view[host].steady_s >= rules.rejoin_s]


def _find_staying(mine: Heartbeat, view: HeardHosts, rules: Rules) -> list[int]:
    """Return the living hosts that are not about to go, and this one."""
    alive = find_alive(mine.host, view, rules)
    return [host for host in alive if host == mine.host or not view[host].heartbeat.leaving]


def _sort_failures(said: Mapping[int, Heartbeat], failed: list[int]) -> tuple[Failure, ...]:
    failures = [failure for host in sorted(failed) if (failure := said[host].failure)]

    def likelihood(failure: Failure) -> tuple[bool, bool, float]:
        return not failure.is_final, not failure.is_first_hand, failure.failed_at

    return tuple(sorted(failures, key=likelihood))


_HEARTBEAT = TypeAdapter(Heartbeat)


def dump_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return a heartbeat as JSON."""
    return _HEARTBEAT.dump_json(heartbeat, exclude_defaults=True)


def parse_heartbeat(text: bytes, num_hosts: int) -> Heartbeat:
    """Read what `dump_heartbeat` wrote, in a run of `num_hosts` hosts; ValueError for anything else."""
    heartbeat = _HEARTBEAT.validate_json(text)
    generation = heartbeat.generation
    named = {heartbeat.host, *heartbeat.sees}
    named |= {generation.leader, *generation.members} if generation else set()
    if not named <= set(range(num_hosts)):
        raise ValueError("it names hosts that do not belong to this run")
    if generation and not _is_possible(generation):
        raise ValueError("no agent forms such a generation")
    return heartbeat


def _is_possible(generation: Generation) -> bool:
    """Whether `form_generation` could have begun it, and stages could have led to it."""
    is_sorted = generation.members == tuple(sorted(set(generation.members)))
    is_led = generation.leader in generation.members and generation.number > 0
    is_ended = (generation.stage == "ended") == (generation.outcome is not None)
    is_counted = 0 <= generation.store_port < 2**16 and generation.workers_lost >= 0
    return is_sorted and is_led and is_ended and is_counted
