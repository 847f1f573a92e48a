"""Agents on a simulated clock and network: membership.py's functions, called in the order of agent.py's tick.

Workers are modelled by what matters here: those of a generation get on only together, hang where a member is silent,
fail a while after a member's connection broke, and leave together when one is told to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from echelon.agent.membership import (
    Failure,
    Heard,
    Plan,
    Rules,
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

TICK_S = 0.2
BEAT_S = 0.5
JOIN_S = 20.0
"""After so long, workers that wait for others to join give up."""
BROKEN = Failure("connection closed by peer", is_final=False, is_first_hand=False)


@dataclass
class Workers:
    """One host's workers of a generation."""

    plan: Plan
    since: float
    end: str | Failure | None = None
    will_end: tuple[float, str | Failure] | None = None
    has_joined: bool = False
    is_drained: bool = False

    def end_later(self, at: float, how: str | Failure) -> None:
        if self.will_end is None or at < self.will_end[0]:
            self.will_end = at, how


@dataclass
class Peer:
    statement: Statement
    heard_at: float
    since: float
    losses: int = 0


class SimulatedAgent:
    def __init__(self, host: int, rules: Rules, now: float) -> None:
        self.rules = rules
        self.mine = Statement(host)
        self.peers: dict[int, Peer] = {}
        self.workers: Workers | None = None
        self.alive: list[int] = []
        self.alive_since = now
        self.trouble_since: float | None = None
        self.sent_at = -1.0
        self.has_news = True

    @property
    def is_over(self) -> bool:
        return self.mine.plan is not None and bool(self.mine.plan.over)

    def hear(self, text: bytes, now: float) -> None:
        statement = parse_statement(text, self.rules.num_hosts)
        peer = self.peers.setdefault(statement.host, Peer(statement, now, now))
        if now - peer.heard_at > self.rules.silence_s:
            peer.since, peer.losses = now, peer.losses + 1
        peer.statement, peer.heard_at = statement, now

    def view(self, now: float) -> dict[int, Heard]:
        return {
            host: Heard(peer.statement, now - peer.heard_at, now - peer.since - self._penalty_s(peer))
            for host, peer in self.peers.items()
        }

    def _penalty_s(self, peer: Peer) -> float:
        return min(self.rules.rejoin_s * (2.0**peer.losses - 1), 120.0)

    def tick(self, now: float) -> None:
        view, before, rules = self.view(now), self.mine, self.rules
        sees = frozenset(host for host, heard in view.items() if heard.age_s < rules.silence_s)
        self.mine = replace(self.mine, sees=sees)
        alive = find_alive(self.mine.host, view, rules)
        if alive != self.alive:
            self.alive, self.alive_since = alive, now
        plan = find_plan_to_follow(self.mine, view, rules)
        if plan is not None:
            self._set_plan(plan)
        if self.mine.leads:
            self._lead(view, now)
        elif should_lead(self.mine, view, rules, now - self.alive_since):
            self._set_plan(make_plan(self.mine, view, rules))
        self._tend(view, now)
        self.has_news = self.has_news or self.mine != before

    def _set_plan(self, plan: Plan) -> None:
        mine = self.mine.plan
        assert mine is None or plan.order >= mine.order, "generations only grow"
        if mine is None or plan.order != mine.order:
            self.trouble_since = None
            self.mine = replace(self.mine, phase="waiting", failure=None)
        self.mine = replace(self.mine, plan=plan)

    def _lead(self, view: dict[int, Heard], now: float) -> None:
        plan = self.mine.plan
        assert plan is not None
        if is_ready_to_start(self.mine, view, self.rules):
            self.mine = replace(self.mine, plan=replace(plan, port=1000 + plan.number))
            return
        review = review_plan(self.mine, view, self.rules, self._trouble_s(view, now))
        self.mine = replace(self.mine, plan=review.plan)
        if not review.replace_because or self.is_over:
            return
        if self.mine.leaving:
            self.mine = replace(self.mine, has_left=True)
        elif may_replace_plan(self.mine, view, self.rules):
            self._set_plan(make_plan(self.mine, view, self.rules))

    def _trouble_s(self, view: dict[int, Heard], now: float) -> float:
        said = [self.mine, *(heard.statement for heard in view.values())]
        if any(statement.phase == "failed" for statement in said):
            self.trouble_since = self.trouble_since or now
            return now - self.trouble_since
        self.trouble_since = None
        return 0.0

    def _tend(self, view: dict[int, Heard], now: float) -> None:
        plan, workers = self.mine.plan, self.workers
        if workers is not None and workers.end is not None:
            if plan is not None and workers.plan.order == plan.order:
                self._note_end(workers.end)
            self.workers = workers = None
        is_member = plan is not None and self.mine.host in plan.members
        is_stale = workers is not None and (plan is None or workers.plan.order != plan.order)
        has_enough = has_quorum(self.mine, view, self.rules)
        if workers is not None and (is_stale or not is_member or not has_enough):
            workers.end_later(now + 0.1, "interrupted")
        elif plan is None or not is_member:
            self.mine = replace(self.mine, phase="waiting")
        elif workers is not None:
            workers.is_drained = workers.is_drained or plan.drain
        elif plan.port and self.mine.phase == "ready":
            if has_enough:
                self.workers = Workers(plan, now)
                self.mine = replace(self.mine, phase="running")
        elif not plan.port and self.mine.phase == "waiting":
            self.mine = replace(self.mine, phase="ready")

    def _note_end(self, end: str | Failure) -> None:
        if isinstance(end, Failure):
            self.mine = replace(self.mine, phase="failed", failure=end)
        else:
            self.mine = replace(self.mine, phase="finished" if end == "finished" else "interrupted")


@dataclass
class World:
    """All hosts and what lies between them."""

    seed: int
    num_hosts: int
    now: float = 0.0
    loss: float = 0.0
    may_finish: bool = False
    cut: set[frozenset[int]] = field(default_factory=set)
    """Pairs of hosts that do not reach each other."""
    frozen: set[int] = field(default_factory=set)
    most_at_work: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.rules = Rules(self.num_hosts, self.num_hosts // 2 + 1, self.num_hosts)
        self.agents: dict[int, SimulatedAgent] = {}
        self.letters: list[tuple[float, int, bytes]] = []
        for host in range(self.num_hosts):
            self.switch_on(host)

    def switch_on(self, host: int) -> None:
        self.agents[host] = SimulatedAgent(host, self.rules, self.now)

    def switch_off(self, host: int) -> None:
        del self.agents[host]
        self.frozen.discard(host)

    def give_notice(self, host: int) -> None:
        """Its machine will be taken away."""
        agent = self.agents[host]
        agent.mine = replace(agent.mine, leaving=True)

    def pass_time(self) -> None:
        """One tick of everybody, in any order, and what goes on between them."""
        self.now += TICK_S
        awake = [host for host in self.agents if host not in self.frozen]
        self.random.shuffle(awake)
        due = [letter for letter in self.letters if letter[0] <= self.now]
        self.letters = [letter for letter in self.letters if letter[0] > self.now]
        for _, host, text in due:
            if host in awake:
                self.agents[host].hear(text, self.now)
        for host in awake:
            self.agents[host].tick(self.now)
            self._post(self.agents[host])
        self._let_workers_work()
        self._check()

    def _post(self, agent: SimulatedAgent) -> None:
        if not agent.has_news and self.now - agent.sent_at < BEAT_S:
            return
        agent.has_news, agent.sent_at = False, self.now
        text = dump_statement(agent.mine)
        for other in self.agents:
            pair = frozenset({agent.mine.host, other})
            if len(pair) == 2 and pair not in self.cut and self.random.random() >= self.loss:
                self.letters.append((self.now + self.random.uniform(0, 0.3), other, text))
        self.letters.sort(key=lambda letter: letter[0])

    def _let_workers_work(self) -> None:
        for order in {agent.workers.plan.order for agent in self.agents.values() if agent.workers}:
            group = {h: w for h, w in self._at_work() if w.plan.order == order}
            members = next(iter(group.values())).plan.members if group else ()
            if set(group) == set(members) and self._is_connected(members):
                self._work_together(group.values())
            else:
                self._work_in_vain(group, members)
        for agent in self.agents.values():
            workers = agent.workers
            if workers and workers.end is None and workers.will_end and workers.will_end[0] <= self.now:
                workers.end = workers.will_end[1]

    def _at_work(self) -> list[tuple[int, Workers]]:
        return [(h, a.workers) for h, a in self.agents.items() if a.workers and a.workers.end is None]

    def _is_connected(self, members: Iterable[int]) -> bool:
        members = set(members)
        return not members & self.frozen and not any(pair <= members for pair in self.cut)

    def _work_together(self, group: Iterable[Workers]) -> None:
        group = list(group)
        will_leave = any(workers.is_drained for workers in group)
        for workers in group:
            workers.has_joined = True
            if will_leave or self.may_finish:
                end = "interrupted" if will_leave else "finished"
                workers.end_later(self.now + self.random.uniform(0.1, 1.0), end)

    def _work_in_vain(self, group: dict[int, Workers], members: Iterable[int]) -> None:
        """A connection to a process that ended breaks; to one behind a cut or on a dead machine, it hangs."""
        here = [host for host in members if host in self.agents and host not in self.frozen]
        for host, workers in group.items():
            reachable = [other for other in here if frozenset({host, other}) not in self.cut]
            is_broken = workers.has_joined and any(other not in group for other in reachable)
            if is_broken or (not workers.has_joined and self.now - workers.since > JOIN_S):
                workers.end_later(self.now + self.random.uniform(0.1, 2.0), BROKEN)

    def _check(self) -> None:
        at_work = self._at_work()
        sizes = [
            sum(w.plan.order == order for _, w in at_work) for order in {w.plan.order for _, w in at_work}
        ]
        self.most_at_work = max(self.most_at_work, *sizes, 0)
        assert sum(size >= self.rules.fewest for size in sizes) <= 1, "two generations with enough hosts"
        for host, workers in at_work:
            agent = self.agents[host]
            is_ending = workers.will_end is not None
            has_enough = has_quorum(agent.mine, agent.view(self.now), self.rules)
            assert is_ending or host in self.frozen or has_enough, "workers without a quorum"

    def do_harm(self) -> None:
        """Something happens to somebody."""
        hosts = list(range(self.num_hosts))
        host, chance = self.random.choice(hosts), self.random
        match chance.choice(["power", "power", "cut", "cut", "heal", "loss", "freeze", "thaw", "notice"]):
            case "power" if host in self.agents:
                self.switch_off(host)
            case "power":
                self.switch_on(host)
            case "cut":
                side = set(chance.sample(hosts, chance.randint(1, self.num_hosts - 1)))
                self.cut = {frozenset({a, b}) for a in side for b in hosts if b not in side}
                if (
                    chance.random() < 0.3
                ):  # one line alone: two hosts that hear all others, but not each other
                    self.cut = {frozenset(chance.sample(hosts, 2))}
            case "heal":
                self.cut = set()
            case "loss":
                self.loss = chance.choice([0.0, 0.3, 0.8])
            case "notice" if host in self.agents:
                self.give_notice(host)
            case "freeze" if host in self.agents:
                self.frozen.add(host)
            case _:
                self.frozen.clear()

    def end_harm(self) -> None:
        """Everything is mended; of the machines that are off, some stay so, if enough are on."""
        self.cut, self.loss, self.frozen = set(), 0.0, set()
        for host in [host for host, agent in self.agents.items() if agent.mine.leaving]:
            self.switch_off(host)
        for host in range(self.num_hosts):
            if host not in self.agents and (
                len(self.agents) < self.rules.fewest or self.random.random() < 0.7
            ):
                self.switch_on(host)

    def is_one_generation(self) -> bool:
        """Whether all living hosts work together."""
        at_work = self._at_work()
        orders = {w.plan.order for _, w in at_work}
        return len(at_work) == len(self.agents) and len(orders) == 1 and all(w.has_joined for _, w in at_work)
