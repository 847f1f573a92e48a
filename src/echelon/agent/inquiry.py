"""What a host answers when it is asked about a run."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from echelon.agent.outcome import last_outcome, read_outcomes
from echelon.agent.result_archive import last_step
from echelon.agent.service import AgentHere, list_agents, workers_of
from echelon.agent.tensorboard_server import tensorboard_time
from echelon.monitor.run_state import RunState, read_state
from echelon.runfolder import RunFolder


@dataclass(frozen=True)
class HostAnswer:
    """One host's view of a run."""

    is_running: bool
    """Whether the agent of the host that was asked for is at work."""
    trains: bool
    """Whether it has workers."""
    launch: str
    """The launch that it belongs to; empty if it is not at work."""
    agents: list[AgentHere]
    """All of the run on this machine: a launch that names the hosts in another order numbers them differently."""
    last_outcome: str
    """Its agent's last word on the end of the run; empty if it has been started since."""
    ends: dict[str, str]
    """How launches of the run have ended, as far as this machine's run folder tells."""
    state: RunState
    last_step: int
    """The step of the newest complete checkpoint."""
    tensorboard_time: float


def answer_about(run: RunFolder, host: int) -> HostAnswer:
    """What this machine knows of a run, of which it is host number `host`."""
    agents = list_agents(run)
    own = next((agent for agent in agents if agent.host == host), None)
    ended = last_outcome(run, host)
    return HostAnswer(
        is_running=own is not None,
        trains=own is not None and bool(workers_of(own.pid)),
        launch=own.launch if own else "",
        agents=agents,
        last_outcome=ended.outcome if ended else "",
        ends={launch: ended.outcome for launch, ended in read_outcomes(run).items()},
        state=read_state(run),
        last_step=last_step(run),
        tensorboard_time=tensorboard_time(run),
    )


ANSWER = TypeAdapter(HostAnswer)
