"""A simulated cluster that executes the shipped decisions: `decision.tick`, `HostExecutor` and `Lease`, on simulated
clocks, a simulated network and simulated workers.

Workers are modelled by what matters here: those of a generation make progress only together, hang if a member is
silent, fail a while after a member's connection broke, and leave together when one is told to. They save every few
steps, if the lease lets them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from echelon.agent.actions import (
    Events,
    FolderChecked,
    FolderClaimed,
    Listening,
    RecordEvent,
    ReleaseFolder,
    RunHasEnded,
    WorkersEnd,
)
from echelon.agent.agent_state import AgentState, first_state
from echelon.agent.decision import hear, tick
from echelon.agent.ending import find_outcome, have_all_heard
from echelon.agent.execution import HostExecutor, Job
from echelon.agent.generation import (
    Failure,
    Generation,
    Heartbeat,
    dump_heartbeat,
    has_quorum,
    parse_heartbeat,
)
from echelon.agent.outcome import RunOutcome, write_outcome
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.launch.worker_process import Survivors
from echelon.lease import newest_generation
from echelon.monitor.heartbeat import Pulse
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder

TICK_S = 0.2
BEAT_S = 0.5
LINGER_S = 3.0
JOIN_S = 20.0
"""After this long, workers that wait for others to join give up."""
SAVE_EVERY = 5
BROKEN = Failure("connection closed by peer", is_final=False, is_first_hand=False)
KILLED = Failure("killed by signal 9", is_final=False, is_first_hand=True)


class SimulatedWorkers:
    """One host's workers of a generation: the executor's job."""

    def __init__(self, generation: Generation, now: float) -> None:
        self.generation, self.since = generation, now
        self.end: WorkersEnd | None = None
        self.survivors: Survivors | None = None
        self.pulses: dict[int, Pulse] = {}
        self.will_end: tuple[float, WorkersEnd] | None = None
        self.step = -1
        """-1 until all have joined and loaded a checkpoint."""
        self.is_draining = False
        self.is_killed = False
        self.is_released = False

    def drain(self) -> None:
        self.is_draining = True

    def kill(self) -> None:
        self.is_killed = True

    def release(self) -> None:
        self.is_killed = self.is_released = True

    def blame(self, rank: int) -> None:
        pass

    def wait(self) -> None:
        pass

    def end_at(self, at: float, how: WorkersEnd) -> None:
        if self.will_end is None or at < self.will_end[0]:
            self.will_end = at, how


class SimulatedExecutor(HostExecutor):
    """The shipped one, with the real lease; workers, ports and a folder that cannot be reached are simulated."""

    def __init__(self, world: World, spec: AgentSpec, run: RunFolder) -> None:
        self._world = world
        self._records_file = RecordWriter(run.agent_records(spec.host))
        super().__init__(spec, run, 0, self._note, clock=lambda: world.clock(spec.host))

    def _note(self, news: RecordEvent) -> None:
        self._records_file.write(news.kind, message=news.message, **news.values)

    @property
    def workers(self) -> SimulatedWorkers | None:
        assert self._job is None or isinstance(self._job, SimulatedWorkers)
        return self._job

    def write_outcome(self, ended: RunOutcome) -> None:
        if not self._is_blind:
            write_outcome(self._records_file, ended, self._spec.me.name)

    def close_records(self) -> None:
        self._records_file.close()

    @property
    def _is_blind(self) -> bool:
        return self._spec.host in self._world.blind

    def _listen(self) -> Listening:
        return Listening(1000 + self._world.random.randrange(60_000))

    def _start(self, generation: Generation) -> Job:
        return SimulatedWorkers(generation, self._world.now)

    def _check_folder(self, is_ours: bool) -> FolderChecked:
        return FolderChecked("stale file handle") if self._is_blind else super()._check_folder(is_ours)

    def _claim_folder(self, number: int, because: str) -> FolderClaimed | RunHasEnded:
        if self._is_blind:
            return FolderClaimed(None, problem="stale file handle")
        return super()._claim_folder(number, because)


@dataclass
class SimulatedAgent:
    spec: AgentSpec
    executor: SimulatedExecutor
    state: AgentState
    inbox: list[tuple[Heartbeat, float]] = field(default_factory=list)
    absent_since: dict[int, float] = field(default_factory=dict)
    is_leaving: bool = False
    stop: int = 0
    sent_at: float = -1.0
    has_news: bool = True
    ended: RunOutcome | None = None
    lingers_until: float = 0.0

    @property
    def host(self) -> int:
        return self.spec.host

    @property
    def workers(self) -> SimulatedWorkers | None:
        return self.executor.workers

    def tick(self, now: float) -> None:
        before = self.state.mine
        if self.ended is None:
            self.state = tick(self.state, self._take_events(), now, self.spec, self.executor)
            self.ended = find_outcome(self.state, now, self.spec)
            if self.ended is not None:
                self._begin_to_leave(now, self.ended)
        else:
            self.state = hear(self.state, self._take_events(), now, self.spec)
        after, known = self.state.mine, before.generation
        if known is not None and after.generation is not None:
            assert after.generation.order >= known.order, "generations only grow"
        self.has_news = self.has_news or after != before

    def _begin_to_leave(self, now: float, ended: RunOutcome) -> None:
        self.executor.close()
        self.executor.write_outcome(ended)
        if self.state.mine.leads:
            self.executor.carry_out(ReleaseFolder())
        self.lingers_until = now + LINGER_S

    def has_left(self, now: float) -> bool:
        return self.ended is not None and (now > self.lingers_until or have_all_heard(self.state, self.ended))

    def _take_events(self) -> Events:
        heartbeats, self.inbox = tuple(self.inbox), []
        return Events(
            heartbeats=heartbeats,
            absent_since=dict(self.absent_since),
            workers_end=self.executor.take_workers_end(),
            stop=self.stop,  # type: ignore[arg-type]
            is_leaving=self.is_leaving,
        )


class World:
    """All hosts, their clocks, and what lies between them."""

    def __init__(
        self, seed: int, num_hosts: int, folder: Path, *, is_shared: bool = True, max_restarts: int = 10_000
    ) -> None:
        self.seed, self.num_hosts, self.is_shared = seed, num_hosts, is_shared
        self.now = 0.0
        self.random = random.Random(seed)
        self.clocks = [
            (self.random.uniform(0, 1e6), self.random.uniform(0.98, 1.02)) for _ in range(num_hosts)
        ]
        """Of each host: where its clock stands at the beginning, and how fast it goes."""
        self.loss = 0.0
        self.may_finish = False
        self.cut: set[frozenset[int]] = set()
        """Pairs of hosts that do not reach each other."""
        self.frozen: set[int] = set()
        self.stuck: set[int] = set()
        """Hosts whose agent stands still while their workers run."""
        self.blind: set[int] = set()
        """Hosts that have lost the shared folder."""
        self.steps = 10**9
        self.saved = [0] * num_hosts
        """The newest checkpoint on each host; a shared folder is the same for all."""
        self.saved_for_sure = 0
        self.most_at_work = 0
        self.generations: set[int] = set()
        self.agents: dict[int, SimulatedAgent] = {}
        self.left: dict[int, RunOutcome] = {}
        """Agents that have left, while their machine is on."""
        self.letters: list[tuple[float, int, bytes]] = []
        self._folder = folder
        self._spec = self._make_spec(max_restarts)
        self.rules = self._spec.rules
        self.has_quorum = self._spec.fewest > num_hosts // 2
        for host in range(num_hosts):
            self.switch_on(host)

    def _make_spec(self, max_restarts: int) -> AgentSpec:
        hosts = tuple(HostSpec(f"host{n + 1}", f"10.0.0.{n + 1}", "eth0", 1) for n in range(self.num_hosts))
        return AgentSpec(
            run="",
            host=0,
            hosts=hosts,
            port=20_000,
            secret=f"{self.seed:064x}",
            shares_folder=self.is_shared,
            fewest=1 if self.is_shared and self.seed % 2 else self.num_hosts // 2 + 1,
            most=self.num_hosts,
            silence_s=5.0,
            hang_s=0.0,
            max_restarts=max_restarts,
            window_s=1e9,
        )

    def clock(self, host: int) -> float:
        start, rate = self.clocks[host]
        return start + rate * self.now

    def run_folder(self, host: int) -> RunFolder:
        run = RunFolder(self._folder / ("run" if self.is_shared else f"run-{host}"))
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def switch_on(self, host: int) -> None:
        spec = replace(self._spec, host=host)
        executor = SimulatedExecutor(self, spec, self.run_folder(host))
        self.agents[host] = SimulatedAgent(spec, executor, first_state(host, self.clock(host)))
        self.left.pop(host, None)

    def switch_off(self, host: int) -> None:
        self.agents.pop(host).executor.close_records()
        for hosts in (self.frozen, self.stuck):
            hosts.discard(host)

    def close(self) -> None:
        for host in list(self.agents):
            self.switch_off(host)

    def pass_time(self) -> None:
        """One tick of everybody, in any order, and what happens between them."""
        self.now += TICK_S
        awake = [host for host in self.agents if host not in self.frozen | self.stuck]
        self.random.shuffle(awake)
        due = [letter for letter in self.letters if letter[0] <= self.now]
        self.letters = [letter for letter in self.letters if letter[0] > self.now]
        for _, host, text in due:
            if host in awake:
                heartbeat = parse_heartbeat(text, self.num_hosts)
                self.agents[host].inbox.append((heartbeat, self.clock(host)))
        for host in awake:
            self._dial(self.agents[host])
            self.agents[host].tick(self.clock(host))
            self._post(self.agents[host])
            if self.agents[host].has_left(self.clock(host)):
                self.left[host] = self.agents[host].ended or RunOutcome("failed")
                self.switch_off(host)
        self._let_workers_work()
        self._check()

    def _dial(self, agent: SimulatedAgent) -> None:
        """Connections to a machine without an agent are refused; to one that is off or cut off, nobody answers."""
        for host in range(self.num_hosts):
            is_called = host in agent.state.hubs
            if is_called and host in self.left and frozenset({agent.host, host}) not in self.cut:
                agent.absent_since.setdefault(host, self.clock(agent.host))
            elif host not in self.left or not is_called:
                agent.absent_since.pop(host, None)

    def _post(self, agent: SimulatedAgent) -> None:
        if not agent.has_news and self.now - agent.sent_at < BEAT_S:
            return
        agent.has_news, agent.sent_at = False, self.now
        text = dump_heartbeat(agent.state.mine)
        for other in self.agents:
            pair = frozenset({agent.host, other})
            is_wanted = other in agent.state.hubs or agent.host in self.agents[other].state.hubs
            if len(pair) == 2 and is_wanted and pair not in self.cut and self.random.random() >= self.loss:
                self.letters.append((self.now + self.random.uniform(0, 0.3), other, text))
        self.letters.sort(key=lambda letter: letter[0])

    # Workers

    def at_work(self) -> list[tuple[int, SimulatedWorkers]]:
        return [(h, a.workers) for h, a in self.agents.items() if a.workers and a.workers.end is None]

    def _let_workers_work(self) -> None:
        training = 0
        for order in {workers.generation.order for _, workers in self.at_work()}:
            group = {h: w for h, w in self.at_work() if w.generation.order == order}
            members = next(iter(group.values())).generation.members
            if set(group) == set(members) and self._is_connected(members):
                # An agent that stands still, alone, lets its workers train; the lease keeps them from saving.
                is_counted = self.has_quorum or not set(members) & self.stuck
                training += self._work_together(group) and is_counted
            else:
                self._work_in_vain(group, members)
        assert training <= 1, "two generations train at once"
        for host, workers in self.at_work():
            if host in self.frozen:
                continue
            if workers.is_killed:
                workers.end = "interrupted"
            elif workers.will_end and workers.will_end[0] <= self.now:
                workers.end = workers.will_end[1]

    def _is_connected(self, members: Iterable[int]) -> bool:
        members = set(members)
        return not members & self.frozen and not any(pair <= members for pair in self.cut)

    def _work_together(self, group: dict[int, SimulatedWorkers]) -> bool:
        """Take a step, unless some are about to end; whether they have."""
        workers = list(group.values())
        if any(each.is_killed or each.will_end for each in workers):
            return False
        if workers[0].step < 0:
            self._load(group)
        step = min(workers[0].step + 1, self.steps)
        must_leave = any(each.is_draining for each in workers)
        is_done = self.may_finish or step >= self.steps
        if step % SAVE_EVERY == 0 or must_leave or is_done:
            self._save(group, step)
        for each in workers:
            each.step = step
            if must_leave or is_done:
                end: WorkersEnd = "finished" if is_done else "interrupted"
                each.end_at(self.now + self.random.uniform(0.1, 1.0), end)
        return True

    def _load(self, group: dict[int, SimulatedWorkers]) -> None:
        """All take the newest checkpoint that any of them has."""
        start = max(self.saved[host] for host in group)
        assert start >= self.saved_for_sure, "a checkpoint that was complete is lost"
        number = next(iter(group.values())).generation.number
        assert not self.is_shared or number not in self.generations, "a generation trains once"
        self.generations.add(number)
        for workers in group.values():
            workers.step = start

    def _save(self, group: dict[int, SimulatedWorkers], step: int) -> None:
        """In a shared folder, if the lease is still this generation's: what lease.fence checks."""
        number = next(iter(group.values())).generation.number
        if self.is_shared and newest_generation(self.run_folder(0).generations) != number:
            return
        assert step >= self.saved_for_sure, "an older generation replaces a newer one's checkpoint"
        for host in range(self.num_hosts) if self.is_shared else group:
            self.saved[host] = step
        self.saved_for_sure = step

    def _work_in_vain(self, group: dict[int, SimulatedWorkers], members: Iterable[int]) -> None:
        """A connection to a process that ended breaks; to one behind a cut or on a dead machine, it hangs."""
        here = [host for host in members if host in self.agents and host not in self.frozen]
        for host, workers in group.items():
            reachable = [other for other in here if frozenset({host, other}) not in self.cut]
            is_broken = workers.step >= 0 and any(other not in group for other in reachable)
            if is_broken or (workers.step < 0 and self.now - workers.since > JOIN_S):
                workers.end_at(self.now + self.random.uniform(0.1, 2.0), BROKEN)

    def _check(self) -> None:
        at_work = self.at_work()
        orders = [workers.generation.order for _, workers in at_work]
        self.most_at_work = max(self.most_at_work, *(orders.count(order) for order in orders), 0)
        for host, workers in at_work:
            agent = self.agents[host]
            if host in self.frozen | self.stuck or workers.is_killed or agent.ended:
                continue
            view = agent.state.view(self.clock(host), self.rules.rejoin_s)
            assert has_quorum(agent.state.mine, view, self.rules), "workers without a quorum"
            assert workers.generation.leader in agent.state.alive, "workers without a leader"

    # Harm

    def do_harm(self) -> None:
        """Something happens to somebody."""
        hosts, chance = list(range(self.num_hosts)), self.random
        host, pairs = chance.choice(hosts), [frozenset({a, b}) for a in hosts for b in hosts if a < b]
        kinds = [
            "power",
            "power",
            "hubs",
            "cut",
            "cut",
            "pairs",
            "heal",
            "loss",
            "freeze",
            "stick",
            "thaw",
            "notice",
            "worker",
            "folder",
        ]
        match chance.choice(kinds):
            case "power":
                (self.switch_off if host in self.agents else self.switch_on)(host)
            case "hubs":  # the leader and its deputies at once
                for hub in {*self.agents[host].state.hubs} & {*self.agents} if host in self.agents else ():
                    self.switch_off(hub)
            case "cut":
                side = set(chance.sample(hosts, chance.randint(1, self.num_hosts)))
                self.cut = {pair for pair in pairs if len(pair & side) == 1}
            case "pairs" if pairs:  # hosts that hear others, but not each other
                self.cut = set(chance.sample(pairs, chance.randint(1, len(pairs) // 3 + 1)))
            case "heal":
                self.cut = set()
            case "loss":
                self.loss = chance.choice([0.0, 0.3, 0.8])
            case "notice" if host in self.agents:
                self.agents[host].is_leaving = True
            case "freeze" | "stick" as how if host in self.agents:
                (self.frozen if how == "freeze" else self.stuck).add(host)
            case "worker" if host in self.agents and (workers := self.agents[host].workers):
                workers.end_at(self.now, KILLED)
            case "folder":
                self.blind = set(chance.sample(hosts, chance.randint(0, self.num_hosts // 2)))
            case _:
                self.frozen, self.stuck = set(), set()

    def end_harm(self) -> None:
        """Everything is mended, and machines that are off are switched on, most of them if enough are on already."""
        self.cut, self.loss, self.frozen, self.stuck, self.blind = set(), 0.0, set(), set(), set()
        for host in [host for host, agent in self.agents.items() if agent.is_leaving]:
            self.switch_off(host)
        for host in range(self.num_hosts):
            is_on = host in self.agents or host in self.left
            is_wanted = len(self.agents) < self.rules.fewest or self.random.random() < 0.7
            if not is_on and is_wanted:
                self.switch_on(host)

    def is_one_generation(self) -> bool:
        """Whether all living hosts train together."""
        at_work = self.at_work()
        orders = {workers.generation.order for _, workers in at_work}
        return len(at_work) == len(self.agents) and len(orders) == 1 and all(w.step >= 0 for _, w in at_work)
