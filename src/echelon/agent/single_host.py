"""A run on this machine alone: a roster of one host, whose agent runs in this process and ends with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from echelon.agent.actions import RecordEvent
from echelon.agent.agent import Agent
from echelon.agent.execution import HostExecutor
from echelon.agent.hub_network import HubNetwork
from echelon.agent.outcome import RunOutcome
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.errors import TrainingError
from echelon.launch.cores import available_cores
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.recipe.schema import RestartSettings
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder


def run_on_this_machine(
    run: RunFolder,
    restart: RestartSettings,
    workers: WorkerRange,
    *,
    lock: int,
    tell: Callable[[RecordEvent], None],
    on_tick: Callable[[], None],
    program: Sequence[str] = (),
    stops: StopRequests | None = None,
) -> RunOutcome:
    """Start workers, and start them again after failures, until they finish or are told to stop.

    SIGINT, SIGTERM and SIGHUP make the workers save and leave, a second one kills them; so does asking `stops`, the
    only way outside the main thread. Raises TrainingError if the run failed, or if workers were stopped before they
    had saved anything.
    """
    me = HostSpec(
        socket.gethostname(), "127.0.0.1", "lo", workers.at_start(available_cores()), workers.fewest
    )
    spec = AgentSpec(
        run=str(run.path),
        host=0,
        hosts=(me,),
        shares_folder=True,
        fewest=1,
        most=1,
        silence_s=1.0,
        hang_s=restart.hang_seconds,
        max_restarts=restart.max_restarts,
        window_s=restart.window_minutes * 60,
        program=tuple(program),
        is_fixed=True,
    )
    stops = stops or StopRequests()
    agent = Agent(spec, HostExecutor(spec, run, lock, tell), HubNetwork(spec), stops)
    with signals_call(stops.ask):
        ended = asyncio.run(agent.run(on_tick))
    if ended.message:
        raise TrainingError(ended.message)
    return replace(ended, restarts=agent.num_failures)
