"""The process that looks after one host's workers, and agrees with the agents of the other hosts on who trains.

It decides nothing itself: membership.py does, from statements. Here they are sent and heard, and what was decided is
done: workers started, drained, killed; the lease on a shared run folder claimed and renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.agent.hostjob import HostJob
from echelon.agent.membership import (
    Failure,
    Heard,
    Over,
    Phase,
    Plan,
    Review,
    Statement,
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
from echelon.agent.outcome import ALONE, Ended, read_ends, write_outcome
from echelon.agent.spec import AgentSpec
from echelon.agent.wire import AbsentError, Receiver, Sender, WireError, answer, call
from echelon.launch import supervise
from echelon.launch.local import START_S, WORKER_PROGRAM, LocalJob, Placement, StopRequests, listen
from echelon.lease import LEASE_S, Lease
from echelon.monitor.heartbeat import Pulse, find_hung
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder

LEAVE_VARIABLE, LEAVE_FILE = "ECHELON_LEAVE_FILE", "/run/echelon/leaving"
"""Where this file is, the machine is about to be taken away; cloud/userdata.py has one that is noticed make it."""
_TICK_S = 0.2
_BEAT_S = 0.5
"""How often a statement is sent although nothing has changed."""
_REDIAL_S = 0.5
_STRANGERS = 16
"""Connections that have not shown yet that they know the secret; where more come, the oldest are closed: a member needs
a moment for what a stranger never gets done."""
_LINGER_S = 3.0
"""How long an agent goes on telling the others that the run is over."""
_ALONE_S = 1800.0
"""How long an agent without enough others waits for them."""
_DESERTED = 6
"""Times `silence_s`: how long the others' machines must answer that no agent is there, until the agents are taken to
have gone for good. A launcher starts an agent that died again in less."""
_MOST_PENALTY_S = 120.0


@dataclass
class _Peer:
    """What is known of another host."""

    statement: Statement
    heard_at: float
    since: float
    losses: int = 0


class Agent:
    """One host's part in a run."""

    def __init__(self, spec: AgentSpec, run: RunFolder, lock: int, records: RecordWriter) -> None:
        self._spec = spec
        self._run = run
        self._lock = lock
        self._records = records
        self._secret = bytes.fromhex(spec.secret)
        self._rules = spec.rules
        self._mine = Statement(spec.host)
        self._peers: dict[int, _Peer] = {}
        self._job: HostJob | None = None
        self._job_order: tuple[int, int] | None = None
        """Of which plan the workers are."""
        self._lease = Lease(run, spec.me.name) if spec.shares_folder else None
        self._lease_seen = time.monotonic()
        self._listener: socket.socket | None = None
        self._strangers: list[asyncio.StreamWriter] = []
        self._callers: dict[int, asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._ticked = time.monotonic()
        self._alive: list[int] = []
        self._alive_since = time.monotonic()
        self._trouble_since: float | None = None
        self._failures: list[supervise.Failure] = []
        self._counted: tuple[int, int] | None = None
        """The plan whose failure is among them: its successor may have to wait for the run folder."""
        self._absent: dict[int, float] = {}
        """Hosts whose machine answers that no agent is there, and since when."""
        self._end: Ended | None = None
        """How the run has ended, if that was read in the run folder rather than heard."""
        self._stop_asked: float | None = None
        self._leave_file = Path(os.environ.get(LEAVE_VARIABLE, LEAVE_FILE))

    async def run(self, listener: socket.socket) -> Over:
        """Take part until the run is over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        server = await asyncio.start_server(self._listen_to, sock=listener)
        self._records.write("start", host=self._spec.me.name)
        others = [host for host in range(len(self._spec.hosts)) if host != self._spec.host]
        tasks = [asyncio.create_task(self._talk_to(host)) for host in others]
        try:
            while not self._plan_over():
                await self._tick()
                await asyncio.sleep(_TICK_S)
            await self._leave()
        finally:
            for task in tasks:
                task.cancel()
            server.close()
        return self._plan_over()

    # What is heard and said

    async def _listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear another agent out. Who is not a host of this run is sent away."""
        address = (writer.get_extra_info("peername") or ("",))[0]
        try:
            if address not in {host.address for host in self._spec.hosts}:
                return
            receiver = await self._let_in(reader, writer)
            while True:
                statement = parse_statement(await receiver.receive(), len(self._spec.hosts))
                if self._callers.get(receiver.caller) is writer:
                    self._hear(receiver.caller, statement)
        except (WireError, ValueError):
            pass
        finally:
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Receiver:
        """A caller that knows the secret. A host's newest connection counts: an older one may hold old statements."""
        self._strangers.append(writer)
        if len(self._strangers) > _STRANGERS:
            self._strangers.pop(0).transport.abort()
        try:
            receiver = await answer(reader, writer, self._secret, self._spec.host)
        finally:
            self._strangers = [other for other in self._strangers if other is not writer]
        if receiver.caller in self._callers:
            self._callers[receiver.caller].transport.abort()
        self._callers[receiver.caller] = writer
        return receiver

    def _hear(self, caller: int, statement: Statement) -> None:
        if statement.host != caller or caller == self._spec.host:
            raise WireError("a statement in another's name")
        now, peer = time.monotonic(), self._peers.get(caller)
        if peer is None:
            self._peers[caller] = _Peer(statement, now, now)
            return
        if now - peer.heard_at > self._rules.silence_s:
            peer.since, peer.losses = now, peer.losses + 1
        peer.statement, peer.heard_at = statement, now

    async def _talk_to(self, host: int) -> None:
        """Tell another agent what this one knows, for as long as it lives."""
        while True:
            with contextlib.suppress(WireError, OSError, TimeoutError):
                sender = await self._call(host)
                try:
                    while True:
                        # A statement from an agent that is stuck would only say that it is not.
                        if time.monotonic() - self._ticked < self._rules.silence_s / 2:
                            async with asyncio.timeout(self._rules.silence_s):
                                await sender.send(dump_statement(self._mine))
                        await self._wait_for_change()
                finally:
                    sender.close()
            await asyncio.sleep(_REDIAL_S)

    async def _call(self, host: int) -> Sender:
        """Connect to another agent, and note whether its machine says that there is none."""
        address = self._spec.hosts[host].address
        try:
            sender = await call(address, self._spec.port, self._secret, self._spec.host, host)
        except AbsentError:
            self._absent.setdefault(host, time.monotonic())
            raise
        except WireError:
            self._absent.pop(host, None)
            raise
        self._absent.pop(host, None)
        return sender

    async def _wait_for_change(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEAT_S):
                await self._changed.wait()
        await asyncio.sleep(0)

    def _view(self) -> dict[int, Heard]:
        now = time.monotonic()
        return {
            host: Heard(peer.statement, now - peer.heard_at, now - peer.since - self._penalty_s(peer))
            for host, peer in self._peers.items()
        }

    def _penalty_s(self, peer: _Peer) -> float:
        """A host that comes and goes waits longer each time before it is taken in: each time costs a restart."""
        return min(self._rules.rejoin_s * (2.0**peer.losses - 1), _MOST_PENALTY_S)

    # What is decided and done

    async def _tick(self) -> None:
        self._ticked = time.monotonic()
        view, before = self._view(), self._mine
        silence_s = self._rules.silence_s
        sees = frozenset(host for host, heard in view.items() if heard.age_s < silence_s)
        self._mine = replace(self._mine, sees=sees, pulses=self._pulses())
        self._look_for_notice()
        self._note_alive(find_alive(self._spec.host, view, self._rules))
        await self._keep_lease()
        self._follow(view)
        if self._mine.leads:
            await self._lead(view)
        elif should_lead(self._mine, view, self._rules, self._ticked - self._alive_since):
            await self._make_plan(view, "")
        self._tend_workers(view)
        if replace(self._mine, pulses={}) != replace(before, pulses={}):
            self._changed.set()
            self._changed = asyncio.Event()

    def _note_alive(self, alive: list[int]) -> None:
        if alive == self._alive:
            return
        is_first = self._mine.plan is None and self._spec.host == min(alive)
        if self._mine.leads or is_first:
            for host in sorted(set(self._alive) - set(alive)):
                self._tell(f"{self._name(host)} is lost: it was not heard for {self._rules.silence_s:g} s")
            for host in sorted(set(alive) - set(self._alive) - {self._spec.host}):
                self._tell(f"{self._name(host)} is here")
        if self._mine.plan and len(alive) < self._rules.fewest <= len(self._alive):
            self._tell(
                f"{self._spec.me.name} hears {len(alive) - 1} other hosts, and {self._rules.fewest} must be there: "
                "it waits for them (--num-hosts)"
            )
        self._alive, self._alive_since = alive, time.monotonic()

    def _follow(self, view: dict[int, Heard]) -> None:
        plan = find_plan_to_follow(self._mine, view, self._rules)
        if plan is not None:
            self._set_plan(plan)

    def _set_plan(self, plan: Plan) -> None:
        if self._mine.plan is None or plan.order != self._mine.plan.order:
            self._close_listener()
            self._trouble_since = None
            self._mine = replace(self._mine, phase="waiting", failure=None)
        self._mine = replace(self._mine, plan=plan)

    async def _lead(self, view: dict[int, Heard]) -> None:
        plan = self._mine.plan
        assert plan is not None
        if is_ready_to_start(self._mine, view, self._rules):
            self._listener = listen(self._spec.me.address)
            self._mine = replace(self._mine, plan=replace(plan, port=self._listener.getsockname()[1]))
            return
        review = review_plan(self._mine, view, self._rules, self._trouble_s(view))
        self._mine = replace(self._mine, plan=review.plan)
        if review.replace_because is None:
            self._find_hung(view)
            return
        is_failure = review.replace_because in ("a worker failed", "the workers left") and not plan.drain
        if is_failure and self._counted != plan.order:
            self._counted = plan.order
            self._count_failure(review)
        if self._mine.leaving:
            await self._lead_no_more()
        elif not self._plan_over() and may_replace_plan(self._mine, view, self._rules):
            await self._make_plan(view, self._why_replaced(plan, view, review))

    def _why_replaced(self, plan: Plan, view: dict[int, Heard], review: Review) -> str:
        if not plan.drain:
            return review.replace_because or ""
        is_left = any(view[host].statement.leaving for host in plan.members if host in view)
        return "a host must go" if is_left else "a host has come back"

    def _look_for_notice(self) -> None:
        """Whether this host's machine is about to be taken away; whoever knows makes a file."""
        if not self._mine.leaving and self._leave_file.exists():
            self._tell(f"{self._spec.me.name} is about to be taken away: saving, to go on without it")
            self._mine = replace(self._mine, leaving=True)

    async def _lead_no_more(self) -> None:
        """Leave the lead, and the run folder, to one that stays."""
        self._mine = replace(self._mine, has_left=True)
        if self._lease is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._lease.give_back)

    def _trouble_s(self, view: dict[int, Heard]) -> float:
        """For how long a member's workers have been down."""
        said = [self._mine, *(heard.statement for heard in view.values())]
        if any(statement.phase == "failed" for statement in said):
            self._trouble_since = self._trouble_since or self._ticked
            return self._ticked - self._trouble_since
        self._trouble_since = None
        return 0.0

    def _count_failure(self, review: Review) -> None:
        """Tell what failed, and end the run where it has failed too often."""
        now, plan = time.monotonic(), review.plan
        is_final = any(failure.is_final for failure in review.failures)
        message = review.failures[0].message if review.failures else "the workers left without being told to"
        self._failures.append(supervise.Failure(now, 1, is_final))
        decision = self._spec.policy.decide(self._failures, now)
        if isinstance(decision, supervise.GiveUp):
            tried = f" (after {decision.restarts} restarts)" if decision.restarts else ""
            self._mine = replace(self._mine, plan=replace(plan, over="failed", reason=message + tried))
        else:
            self._tell(message)
            self._tell(
                f"restarting ({decision.number} of {self._spec.max_restarts}) from the newest checkpoint"
            )

    async def _make_plan(self, view: dict[int, Heard], because: str) -> None:
        plan = make_plan(self._mine, view, self._rules)
        if self._lease is not None:
            try:
                await asyncio.to_thread(self._lease.look)  # raises if the folder is not there
                # Those who had it may have ended the run while they could not tell us.
                ends = await asyncio.to_thread(read_ends, self._run)
                self._end = ends.get(self._spec.launch)
                if self._end is not None:
                    return
                number = await asyncio.to_thread(self._lease.claim, plan.number)
            except OSError as error:
                self._lose_folder(str(error))
                return
            if number is None:
                return  # somebody else may still hold the run folder; the next tick looks again
            plan = replace(plan, number=number)
        names = ", ".join(self._name(host) for host in plan.members)
        reason = f" ({because})" if because else ""
        self._tell(
            f"generation {plan.number}{reason}: {names}", generation=plan.number, hosts=len(plan.members)
        )
        self._set_plan(plan)

    def _find_hung(self, view: dict[int, Heard]) -> None:
        """Where all workers of all hosts wait for each other, find the one that is farthest behind."""
        plan = self._mine.plan
        assert plan is not None
        said = [self._mine, *(view[host].statement for host in plan.members if host in view)]
        if plan.hung >= 0 or not self._spec.hang_s or any(statement.phase != "running" for statement in said):
            return
        pulses = {rank: Pulse(*pulse) for statement in said for rank, pulse in statement.pulses.items()}
        if len(pulses) == sum(self._spec.hosts[host].workers for host in plan.members):
            hung = find_hung(pulses, self._spec.hang_s, START_S)
            if hung is not None:
                self._mine = replace(self._mine, plan=replace(plan, hung=hung))

    def _tend_workers(self, view: dict[int, Heard]) -> None:
        """Start, drain or end this host's workers, as the plan says."""
        plan, job = self._mine.plan, self._job
        if job is not None and job.end is not None:
            if plan is not None and self._job_order == plan.order:
                self._note_end(job.end)
            job.wait()
            self._job = job = None
        is_member = plan is not None and self._spec.host in plan.members
        is_stale = plan is None or self._job_order != plan.order
        is_alone = plan is not None and plan.leader not in self._alive
        is_alone |= not has_quorum(self._mine, view, self._rules)
        if job is not None and (is_stale or not is_member or is_alone):
            job.kill()
        elif plan is None or not is_member:
            self._set_phase("waiting")
        elif job is not None:
            if plan.drain:
                job.drain()
            if plan.hung >= 0:
                job.blame(plan.hung)
        elif plan.port and self._mine.phase == "ready":
            if not is_alone:
                self._start(plan)
        elif not plan.port and self._mine.phase == "waiting":
            self._set_phase("ready")

    def _note_end(self, end: str | Failure) -> None:
        if isinstance(end, Failure):
            self._mine = replace(self._mine, phase="failed", failure=end)
            self._records.write("failure", message=end.message)
        elif end == "finished":
            self._set_phase("finished")
        else:
            self._set_phase("interrupted")

    def _set_phase(self, phase: Phase) -> None:
        self._mine = replace(self._mine, phase=phase)

    def _start(self, plan: Plan) -> None:
        place = place_of(self._spec, plan)
        listener, self._listener = self._listener, None
        program = self._spec.program or WORKER_PROGRAM

        def start(stops: StopRequests) -> LocalJob:
            return LocalJob(
                self._run,
                self._spec.me.workers,
                self._lock,
                program=program,
                stops=stops,
                hang_s=self._spec.hang_s,
                place=place,
                listener=listener,
            )

        self._job, self._job_order = HostJob(start), plan.order
        self._set_phase("running")

    def _pulses(self) -> dict[int, tuple[int, int, int, float]]:
        pulses = self._job.pulses if self._job else {}
        return {rank: (p.beats, p.turns, p.step, p.silent_s) for rank, p in pulses.items()}

    # The shared run folder

    async def _keep_lease(self) -> None:
        """Look at the run folder's lease, and renew it where this host leads."""
        if self._lease is None or time.monotonic() - self._lease_seen < 1.0:
            return
        try:
            await asyncio.to_thread(self._lease.look)
            is_kept = not self._mine.leads or await asyncio.to_thread(self._lease.renew)
        except OSError as error:
            if time.monotonic() - self._lease_seen > LEASE_S / 2:
                self._lose_folder(str(error))
            return
        self._lease_seen = time.monotonic()
        if is_kept:
            self._mine = replace(self._mine, can_lead=True)
        else:
            self._lose_folder("a newer generation has it")

    def _lose_folder(self, why: str) -> None:
        if self._mine.can_lead:
            self._tell(f"{self._spec.me.name} has lost the run folder: {why}")
        self._mine = replace(self._mine, can_lead=False)
        if self._mine.plan is not None and self._mine.plan.leader == self._spec.host and self._job:
            self._job.kill()

    # Stopping

    def _ask_to_stop(self) -> None:
        """Called for SIGTERM: once to save and leave, again, a while later, to end at once."""
        now = time.monotonic()
        if self._stop_asked is None:
            self._stop_asked = now
            self._mine = replace(self._mine, stop=1)
        elif now - self._stop_asked > 1.0:
            self._mine = replace(self._mine, stop=2)

    def _plan_over(self) -> Over:
        """How the run has ended, empty while it goes on."""
        plan, now = self._mine.plan, time.monotonic()
        if plan is not None and plan.over:
            return plan.over
        if self._end is not None and self._end.outcome != ALONE:
            return self._end.outcome
        if len(self._alive) >= self._rules.fewest and not (self._mine.stop and plan is None):
            return ""
        if self._mine.stop:
            return "interrupted"
        has_waited = now - self._alive_since > _ALONE_S
        return "failed" if has_waited or self._is_deserted(now) else ""

    def _is_deserted(self, now: float) -> bool:
        """Whether so many agents that once were there have gone that the run cannot go on."""
        patience_s = _DESERTED * self._rules.silence_s
        absent = [host for host, since in self._absent.items() if now - since > patience_s]
        return self._mine.plan is not None and len(self._spec.hosts) - len(absent) < self._rules.fewest

    async def _leave(self) -> None:
        """End what is left of the workers, and make sure that the others hear how the run has ended."""
        over, job = self._plan_over(), self._job
        if job is not None:
            job.kill()
            await asyncio.to_thread(job.wait)
        self._close_listener()
        write_outcome(self._records, self._last_word(over), self._spec.me.name)
        if self._lease is not None and self._mine.leads:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._lease.give_back)
        self._changed.set()
        await asyncio.sleep(_TICK_S)
        deadline = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline and not self._have_all_heard(over):
            self._ticked = time.monotonic()
            await asyncio.sleep(_TICK_S)

    def _last_word(self, over: Over) -> Ended:
        plan, launch = self._mine.plan, self._spec.launch
        if plan is not None and plan.over:
            return Ended(plan.over, plan.reason, launch)
        if self._end is not None:
            return self._end
        if over == "interrupted":
            return Ended(over, "", launch)
        return Ended(ALONE, "too few hosts were left", launch)

    def _have_all_heard(self, over: Over) -> bool:
        alive = [host for host in self._alive if host in self._peers]
        plans = [self._peers[host].statement.plan for host in alive]
        return all(plan is not None and plan.over == over for plan in plans)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _name(self, host: int) -> str:
        return self._spec.hosts[host].name

    def _tell(self, message: str, **values: object) -> None:
        self._records.write("event", message=message, **values)


def place_of(spec: AgentSpec, plan: Plan) -> Placement:
    """Where a host's workers stand: the leader's come first, as the first of them keeps the group's store."""
    order = [plan.leader, *(host for host in plan.members if host != plan.leader)]
    counts = [spec.hosts[host].workers for host in order]
    before = order.index(spec.host)
    return Placement(
        size=sum(counts),
        first_rank=sum(counts[:before]),
        address=spec.hosts[plan.leader].address,
        port=plan.port,
        interface=spec.me.interface,
        num_hosts=len(plan.members),
        generation=plan.number if spec.shares_folder else 0,
        shares_folder=spec.shares_folder,
    )
