"""`status`: how a run stands, here or on its hosts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from echelon.agent.inquiry import HostAnswer
from echelon.cluster.host_containers import find_containers
from echelon.cluster.host_session import HostSession
from echelon.cluster.roster import open_sessions, read_roster
from echelon.cluster.status import ask_hosts, judge_run
from echelon.commands.runs import RunSummary, summarise
from echelon.errors import RemoteError
from echelon.explain.history import RecordStore, read_history
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder


@dataclass(frozen=True)
class HostState:
    """One host of a run under way."""

    host: str
    workers: int
    state: str
    """running, waiting (its agent has no workers), stopped, or why it cannot be asked."""

    @property
    def is_reached(self) -> bool:
        return self.state in ("running", "waiting", "stopped")


@dataclass(frozen=True)
class RunStatus:
    """A run in a few lines."""

    run: RunSummary
    generation: int | None
    seconds_per_step: float | None
    """The run's time per step, also if workers take whole steps side by side."""
    seconds_left: float | None
    hosts: list[HostState]
    events: list[str]
    """The last messages of its launcher and its agents."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "run": self.run.to_json()}


def get_status(run: RunFolder) -> RunStatus:
    """How a run stands; its hosts are asked."""
    summary, hosts = summarise_with_hosts(run.require())
    store = RecordStore()
    history = read_history(run, store)
    left = (
        max(0, summary.steps - summary.step) * history.wall_pace if summary.steps and history.steps else None
    )
    told = _told(run, len(hosts))
    generations = [record["generation"] for record in told if isinstance(record.get("generation"), int)]
    return RunStatus(
        run=summary,
        generation=generations[-1] if generations else None,
        seconds_per_step=history.pace or None,
        seconds_left=left if summary.state == "training" else None,
        hosts=hosts,
        events=[str(record.get("message", "")) for record in (*told[-5:], *store.notes())],
    )


def summarise_with_hosts(run: RunFolder) -> tuple[RunSummary, list[HostState]]:
    """A run in one line, and its hosts, which are asked: its launcher may have gone, and they may know more."""
    summary, roster = summarise(run), read_roster(run)
    if roster is None:
        return summary, []
    with open_sessions(roster) as sessions:
        answers = ask_hosts(find_containers(sessions, run.path, roster.container), run)
        state = judge_run(run, answers)
        hosts = [_host_state(session, answer) for session, answer in zip(sessions, answers, strict=True)]
    newer = replace(summary, state=state.name, step=state.step, steps=state.steps, last_change=state.as_of)
    return newer, hosts


def _host_state(session: HostSession, answer: HostAnswer | RemoteError) -> HostState:
    if isinstance(answer, RemoteError):
        state = answer.message
    elif not answer.is_running:
        state = "stopped"
    else:
        state = "running" if answer.trains else "waiting"
    return HostState(session.name, session.spec.workers, state)


def _told(run: RunFolder, num_hosts: int) -> list[dict[str, Any]]:
    """Events of the launcher and of all agents, by time."""
    files = [run.launcher_records, *(run.agent_records(host) for host in range(num_hosts))]
    records = [record for file in files for record in read_records(file) if record["kind"] == "event"]
    return sorted(records, key=lambda record: float(record.get("time") or 0))
