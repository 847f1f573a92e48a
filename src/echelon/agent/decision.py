"""What an agent does next: `decide(state, events, now, spec) -> (state, actions)`, without side effects.

The agent (agent.py) collects events, carries the actions out, and hands their answers to the next call. The simulation
in tests does the same on a simulated clock, network and run folder. The rules themselves are in generation.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from echelon.agent.actions import (
    Action,
    ActionResult,
    BlameWorker,
    CheckFolder,
    ClaimFolder,
    DrainWorkers,
    Events,
    FolderChecked,
    FolderClaimed,
    KillWorkers,
    Listen,
    Listening,
    RecordEvent,
    ReleaseFolder,
    RunHasEnded,
    StartWorkers,
    WorkersEnd,
)
from echelon.agent.agent_state import AgentState, Peer
from echelon.agent.ending import describe_loss
from echelon.agent.generation import (
    LEADER,
    Failure,
    Generation,
    Heard,
    Heartbeat,
    Review,
    find_alive,
    find_generation_to_follow,
    find_present,
    form_generation,
    has_quorum,
    is_led,
    is_ready_to_start,
    may_replace_generation,
    review_generation,
    should_lead,
)
from echelon.agent.restarts import GiveUp, Restart, format_count
from echelon.agent.spec import AgentSpec
from echelon.agent.topology import choose_hubs
from echelon.launch.local import START_S
from echelon.lease import LEASE_S
from echelon.monitor.heartbeat import Pulse, find_hung

_FOLDER_CHECK_S = 1.0
_LEFT = Failure("the workers left without being told to", is_final=False, is_first_hand=True)


def decide(
    state: AgentState, events: Events, now: float, spec: AgentSpec
) -> tuple[AgentState, tuple[Action, ...]]:
    """Return what the agent remembers from now on, and what it is to do."""
    decision = _Decision(state, now, spec)
    decision.hear(events)
    decision.take_answers(events.answers)
    decision.check_folder()
    decision.follow_or_lead()
    decision.tend_workers()
    decision.vouch_for_leader()
    return decision.state, tuple(decision.actions)


def hear(state: AgentState, events: Events, now: float, spec: AgentSpec) -> AgentState:
    """Take events in without acting on them: for an agent that is about to leave."""
    decision = _Decision(state, now, spec)
    decision.hear(events)
    return decision.state


class Executor(Protocol):
    """Carries actions out: the host's (execution.py), or a simulated one."""

    def carry_out(self, action: Action) -> ActionResult | None: ...


def tick(state: AgentState, events: Events, now: float, spec: AgentSpec, executor: Executor) -> AgentState:
    """Decide, carry the actions out, and decide again on their answers. What is asked then waits for the next tick."""
    state, actions = decide(state, events, now, spec)
    answers = tuple(answer for action in actions if (answer := executor.carry_out(action)) is not None)
    if answers:
        again = replace(events, heartbeats=(), workers_end=None, answers=answers)
        state, actions = decide(state, again, now, spec)
        for action in actions:
            if not isinstance(action, Listen | CheckFolder | ClaimFolder):
                executor.carry_out(action)
    return state


class _Decision:
    """One call of `decide`: the state as it changes, and the actions so far."""

    def __init__(self, state: AgentState, now: float, spec: AgentSpec) -> None:
        self.state, self.now, self.spec, self.rules = state, now, spec, spec.rules
        self.actions: list[Action] = []
        self.view: dict[int, Heard] = {}

    @property
    def mine(self) -> Heartbeat:
        return self.state.mine

    def hear(self, events: Events) -> None:
        """Take in other hosts' heartbeats and what is observed on this host."""
        peers = dict(self.state.peers)
        for heartbeat, at in events.heartbeats:
            peers[heartbeat.host] = _hear(peers.get(heartbeat.host), heartbeat, at, self.rules.silence_s)
        for host in events.lost:
            peers[host] = replace(
                peers.get(host, Peer(Heartbeat(host), -math.inf, self.now)), heard_at=-math.inf
            )
        self.state = replace(self.state, peers=peers, absent_since=dict(events.absent_since))
        self.view = self.state.view(self.now, self.rules.rejoin_s)
        sees = frozenset(host for host, heard in self.view.items() if heard.age_s < self.rules.silence_s)
        pulses = {
            rank: (p.beats, p.turns, p.step, p.silent_s, p.is_stopped) for rank, p in events.pulses.items()
        }
        stop = max(self.mine.stop, events.stop)
        self._set(sees=sees, pulses=pulses, stop=stop)
        if events.is_leaving and not self.mine.leaving:
            self._tell(f"{self.spec.me.name} is about to be taken away: saving, to continue without it")
            self._set(leaving=True)
        if events.workers_end is not None:
            self._note_end(events.workers_end)
        self._note_alive(tuple(find_alive(self.mine.host, self.view, self.rules)))
        self._note_present(find_present(self.mine, self.view, self.rules))
        hubs = choose_hubs(self.mine, self.view, self.state.hubs, self.now, self.rules)
        self.state = replace(self.state, hubs=hubs)

    def _note_end(self, end: WorkersEnd) -> None:
        order, self.state = self.state.workers_of, replace(self.state, workers_of=None)
        if self.mine.generation is None or order != self.mine.generation.order:
            return
        if isinstance(end, Failure):
            self._set(phase="failed", failure=end)
            self.actions.append(RecordEvent(end.message, kind="failure"))
        else:
            self._set(phase=end)

    def _note_alive(self, alive: tuple[int, ...]) -> None:
        before, silence_s = self.state.alive, self.rules.silence_s
        if alive == before:
            return
        self.state = replace(self.state, alive=alive, alive_since=self.now)
        if self.rules.is_fixed:
            return  # a lost host ends the run, which says so
        if self.mine.leads or (self.mine.host == LEADER and self._is_first_start()):
            for host in sorted(set(before) - set(alive)):
                self._tell(f"{self._name(host)} is lost: no heartbeat for {silence_s:g} s")
            for host in sorted(set(alive) - set(before) - {self.mine.host}):
                self._tell(f"{self._name(host)} is here")

    def _note_present(self, present: frozenset[int]) -> None:
        before, fewest = self.state.present, self.rules.fewest
        self.state = replace(self.state, present=present)
        if self.mine.generation and len(present) < fewest <= len(before) and not self.rules.is_fixed:
            self._tell(
                f"{self.spec.me.name} hears {len(present) - 1} other hosts, and {fewest} must be there: "
                "it waits for them (--num-hosts)"
            )

    def _is_first_start(self) -> bool:
        """Whether no host knows of a generation: then one host tells who arrives, or each would tell what it hears."""
        said = [self.mine, *(heard.heartbeat for heard in self.view.values())]
        return all(heartbeat.generation is None for heartbeat in said)

    # The shared run folder

    def take_answers(self, answers: tuple[ActionResult, ...]) -> None:
        for answer in answers:
            match answer:
                case Listening(port):
                    self._start_generation(port)
                case FolderClaimed(problem=problem) if problem:
                    self._lose_folder(problem)
                case FolderClaimed(None):
                    pass  # the next decision asks again
                case FolderClaimed(int(number), because):
                    self._adopt(replace(self._next_generation(), number=number), because)
                case RunHasEnded(ended):
                    self.state = replace(self.state, ended=ended)
                case FolderChecked(problem, is_taken):
                    self._note_folder(problem, is_taken)

    def _start_generation(self, port: int) -> None:
        generation = self.mine.generation
        if generation is not None and self.mine.leads and generation.stage == "forming":
            self._set(generation=replace(generation, stage="running", store_port=port))

    def _note_folder(self, problem: str, is_taken: bool) -> None:
        if problem:
            if self.now - self.state.folder_seen_at > LEASE_S / 2:
                self._lose_folder(problem)
            return
        self.state = replace(self.state, folder_seen_at=self.now)
        if is_taken:
            self._lose_folder("a newer generation has it")
        else:
            self._set(can_lead=True)

    def _lose_folder(self, why: str) -> None:
        if self.mine.can_lead:
            self._tell(f"{self.spec.me.name} can no longer use the run folder: {why}")
        self._set(can_lead=False)
        generation = self.mine.generation
        if generation is not None and generation.leader == self.mine.host and self.state.workers_of:
            self.actions.append(KillWorkers())

    def check_folder(self) -> None:
        is_due = self.now - self.state.folder_seen_at >= _FOLDER_CHECK_S
        if self.spec.needs_lease and is_due:
            self.actions.append(CheckFolder(self.mine.leads))

    # Following and leading

    def follow_or_lead(self) -> None:
        followed = find_generation_to_follow(self.mine, self.view, self.rules)
        if followed is not None:
            self._set_generation(followed)
        if self.mine.leads:
            self._lead()
        elif self._is_hub() and should_lead(
            self.mine, self.view, self.rules, self.now - self.state.alive_since
        ):
            self._form("")

    def _is_hub(self) -> bool:
        """Whether others call this host: any other hears few, and may know too little to lead."""
        return self.mine.host in self.state.hubs

    def vouch_for_leader(self) -> None:
        self._set(is_led=is_led(self.mine, self.view, self.rules))

    def _set_generation(self, generation: Generation) -> None:
        if self.mine.generation is None or generation.order != self.mine.generation.order:
            self.state = replace(self.state, trouble_since=None)
            self._set(phase="waiting", failure=None)
        self._set(generation=generation)

    def _form(self, because: str) -> None:
        """Form a new generation, for which a shared run folder must be claimed first."""
        generation = self._next_generation()
        if self.spec.needs_lease:
            self.actions.append(ClaimFolder(generation.number, because))
        else:
            self._adopt(generation, because)

    def _next_generation(self) -> Generation:
        generation = form_generation(self.mine, self.view, self.rules)
        return replace(generation, workers_lost=len(self.state.failed_at))

    def _adopt(self, generation: Generation, because: str) -> None:
        self._set_generation(generation)
        if self.rules.is_fixed:
            return
        names = ", ".join(self._name(host) for host in generation.members)
        reason = f" ({because})" if because else ""
        self._tell(
            f"generation {generation.number}{reason}: {names}",
            generation=generation.number,
            hosts=len(generation.members),
        )

    def _lead(self) -> None:
        generation = self.mine.generation
        assert generation is not None
        if is_ready_to_start(self.mine, self.view, self.rules):
            self.actions.append(Listen())
            return
        review = review_generation(self.mine, self.view, self.rules, self._trouble_s())
        self._set(generation=review.generation)
        if review.replace_because is None:
            self._find_hung()
            return
        is_loss = review.replace_because == "a host is lost"
        if is_loss and self.rules.is_fixed:
            self._set(generation=review.generation.end("failed", self._explain_loss(generation)))
            return
        is_failure = not is_loss and (self.rules.is_fixed or generation.stage != "draining")
        if is_failure and self.state.counted != generation.order:
            self._count_failure(review)
        if self.mine.leaving:
            self._set(has_left=True)
            self.actions.append(ReleaseFolder())
        elif not self._has_ended() and may_replace_generation(self.mine, self.view, self.rules):
            self._form(self._why_replaced(generation, review))

    def _has_ended(self) -> bool:
        return self.mine.generation is not None and self.mine.generation.stage == "ended"

    def _why_replaced(self, generation: Generation, review: Review) -> str:
        if generation.stage != "draining":
            return review.replace_because or ""
        left = [
            host for host in generation.members if host in self.view and self.view[host].heartbeat.leaving
        ]
        return "a host must go" if left else "a host has come back"

    def _trouble_s(self) -> float:
        """For how long a member's workers have been down."""
        said = [self.mine, *(heard.heartbeat for heard in self.view.values())]
        if any(heartbeat.phase == "failed" for heartbeat in said):
            since = self.now if self.state.trouble_since is None else self.state.trouble_since
            self.state = replace(self.state, trouble_since=since)
            return self.now - since
        self.state = replace(self.state, trouble_since=None)
        return 0.0

    def _count_failure(self, review: Review) -> None:
        """Tell what failed, and end the run if it has failed too often."""
        failure = review.failures[0] if review.failures else _LEFT
        is_final = any(failure.is_final for failure in review.failures)
        failed_at = (*self.state.failed_at, self.now)
        self.state = replace(self.state, failed_at=failed_at, counted=review.generation.order)
        verdict = self.spec.policy.decide(failed_at, self.now, is_final=is_final)
        if isinstance(verdict, GiveUp) or (self.rules.is_fixed and self._is_stopping()):
            tried = self.spec.policy.describe(verdict) if isinstance(verdict, GiveUp) else ""
            reason = failure.summary + tried + failure.details
            self._set(generation=review.generation.end("failed", reason, is_final=is_final))
            return
        which = {"rank": failure.rank, "exit_code": failure.exit_code} if failure.rank >= 0 else {}
        self._tell(failure.message, **which)
        self._tell_restart(verdict, sum(failure.survivors for failure in review.failures))

    def _tell_restart(self, restart: Restart, survivors: int) -> None:
        number = f"restarting ({restart.number} of {self.spec.max_restarts})"
        kept = f"; {format_count(survivors, 'worker')} kept the weights"
        start = kept if survivors else " from the newest checkpoint"
        if len(self.spec.hosts) > 1:
            self._tell(f"{number}{start}")
            return
        workers = self.spec.me.workers_in(self._next_generation())
        message = f"{number} with {format_count(workers, 'worker')}{start}"
        self._tell(message, restart=restart.number, workers=workers)

    def _explain_loss(self, generation: Generation) -> str:
        """Say which member of a fixed group is lost."""
        for host in sorted(set(generation.members) - set(self.state.alive)):
            silent_s = self.view[host].age_s if host in self.view else math.inf
            return describe_loss(self._name(host), silent_s)
        return "a host is lost"

    def _is_stopping(self) -> bool:
        others = [self.view[host].heartbeat for host in self.state.alive if host in self.view]
        return bool(max([self.mine.stop, *(heartbeat.stop for heartbeat in others)]))

    def _find_hung(self) -> None:
        """If all workers of all hosts wait for each other, find the one that is farthest behind."""
        generation = self.mine.generation
        assert generation is not None
        said = [self.mine, *(self.view[host].heartbeat for host in generation.members if host in self.view)]
        are_running = all(heartbeat.phase == "running" for heartbeat in said)
        if generation.hung_rank >= 0 or not self.spec.hang_s or not are_running:
            return
        pulses = {rank: Pulse(*pulse) for heartbeat in said for rank, pulse in heartbeat.pulses.items()}
        if len(pulses) == sum(self.spec.hosts[host].workers_in(generation) for host in generation.members):
            hung = find_hung(pulses, self.spec.hang_s, START_S)
            if hung is not None:
                self._set(generation=replace(generation, hung_rank=hung))

    # This host's workers

    def tend_workers(self) -> None:
        """Start, drain or end this host's workers, as the generation says."""
        generation, order = self.mine.generation, self.state.workers_of
        is_member = generation is not None and self.mine.host in generation.members
        is_stale = generation is None or order != generation.order
        if order is not None and (not is_member or self._is_alone(generation)):
            self.actions.append(KillWorkers())
        elif order is not None and is_stale:
            self.actions.append(KillWorkers(keeps_survivors=True))
        elif generation is None or not is_member:
            self._set(phase="waiting")
        elif order is not None:
            # In a fixed group, the launcher that told this process to stop may kill it soon.
            if generation.stage == "draining" or (self.rules.is_fixed and self.mine.stop):
                self.actions.append(DrainWorkers())
            if generation.hung_rank >= 0:
                self.actions.append(BlameWorker(generation.hung_rank))
        elif generation.stage == "forming" and self.mine.phase == "waiting":
            self._set(phase="ready")
        elif self.mine.phase == "ready" and generation.store_port and not self._is_alone(generation):
            self.actions.append(StartWorkers(generation))
            self.state = replace(self.state, workers_of=generation.order)
            self._set(phase="running")

    def _is_alone(self, generation: Generation | None) -> bool:
        """Whether this host hears too few others, or not its leader, for workers to run."""
        is_led = generation is not None and generation.leader in self.state.alive
        return not is_led or not has_quorum(self.mine, self.view, self.rules)

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, mine=replace(self.state.mine, **changes))  # type: ignore[arg-type]

    def _tell(self, message: str, **values: object) -> None:
        self.actions.append(RecordEvent(message, values))

    def _name(self, host: int) -> str:
        return self.spec.hosts[host].name


def _hear(peer: Peer | None, heartbeat: Heartbeat, at: float, silence_s: float) -> Peer:
    if peer is None:
        return Peer(heartbeat, at, at)
    is_back = at - peer.heard_at > silence_s
    since, losses = (at, peer.losses + 1) if is_back else (peer.since, peer.losses)
    return Peer(heartbeat, at, since, losses)
