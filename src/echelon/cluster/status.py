"""The state of a run on hosts, asked of the hosts themselves; and agents that have missed its end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from echelon.agent.inquiry import HostAnswer
from echelon.agent.outcome import ALONE
from echelon.cluster.host_session import HostSession, stop_agent_now
from echelon.cluster.roster import open_sessions, read_roster
from echelon.errors import RemoteError, RunError
from echelon.launch.ssh import side_by_side
from echelon.monitor.run_state import RunState, read_state
from echelon.runfolder import RunFolder

_ASK_S = 15.0
_OPEN = ("training", "unknown", "not started")
"""States that say nothing about how the run has ended."""


def ask_hosts(sessions: Sequence[HostSession], run: RunFolder) -> list[HostAnswer | RemoteError]:
    """What each host says of the run, or why it cannot be asked."""

    def ask(session: HostSession) -> HostAnswer | RemoteError:
        try:
            return session.ask(run.path, timeout_s=_ASK_S)
        except RemoteError as error:
            return error

    return side_by_side(sessions, ask)


def judge_run(run: RunFolder, answers: Sequence[HostAnswer | RemoteError]) -> RunState:
    """How a run stands by what its hosts have answered and by what has come into this folder."""
    told = [answer for answer in answers if isinstance(answer, HostAnswer)]
    is_over = _is_over(told)
    here = read_state(run, is_over=is_over)
    states = [here, *(answer.state for answer in told)]
    # A host without the first worker knows no step, and has the time of its recipe.
    newest = max(states, key=lambda state: (state.steps is not None, state.as_of, state.step))
    is_held = run.is_locked() and not is_over
    name = _judge(here, told, is_held=is_held, have_all_answered=len(told) == len(answers))
    return replace(newest, name=name)


def _is_over(told: Sequence[HostAnswer]) -> bool:
    """Whether agents have said how the run has ended, and none is at work."""
    is_known = any(answer.last_outcome not in ("", ALONE) for answer in told)
    return is_known and not any(answer.is_running for answer in told)


def _judge(here: RunState, told: Sequence[HostAnswer], *, is_held: bool, have_all_answered: bool) -> str:
    ends = {launch: outcome for answer in told for launch, outcome in answer.ends.items()}
    running = [answer for answer in told if answer.is_running]
    going = [answer for answer in running if answer.launch not in ends]
    if going:
        return "training" if any(answer.trains for answer in going) else "waiting for hosts"
    if running:  # they have missed the end of the run, and will find out
        return "finished" if ends[running[0].launch] == "finished" else "interrupted"
    if is_held:  # its launcher is there, and starts agents
        return "training"
    ended = [state for state in (here, *(answer.state for answer in told)) if state.name not in _OPEN]
    if ended:
        return max(ended, key=lambda state: state.as_of).name
    if here.name == "not started" or not have_all_answered:
        return here.name
    return "interrupted"


def end_leftovers(run: RunFolder) -> list[str]:
    """End agents whose launch of the run is over, on hosts that were cut off then and so missed it; those hosts' names.

    Agents that still train are left alone.
    """
    roster = None
    with contextlib.suppress(RunError):  # another user's hosts are not asked
        roster = read_roster(run)
    if roster is None:
        return []
    with open_sessions(roster) as sessions:
        answers = ask_hosts(sessions, run)
        known = [(s, a) for s, a in zip(sessions, answers, strict=True) if isinstance(a, HostAnswer)]
        ends = {launch for _, answer in known for launch in answer.ends}
        left = [
            (session, agent.host)
            for session, answer in known
            for agent in answer.agents
            if agent.launch in ends
        ]
        side_by_side(left, lambda each: stop_agent_now(each[0], str(run.path), each[1]))
    return [session.name for session, _ in left]
