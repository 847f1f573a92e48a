"""When the run has ended for an agent, and how."""

from __future__ import annotations

import math

from echelon.agent.agent_state import AgentState
from echelon.agent.generation import LEADER, NOT_STARTED
from echelon.agent.outcome import ALONE, RunOutcome
from echelon.agent.spec import AgentSpec

_ALONE_S = 1800.0
"""How long an agent without enough others waits for them."""
_DESERTED = 6
"""Times `silence_s`: how long the others' machines must answer that no agent is there before the agents are taken to
have gone for good. A launcher restarts an agent that died sooner than that."""


def find_outcome(state: AgentState, now: float, spec: AgentSpec) -> RunOutcome | None:
    """How the run has ended, as far as this agent is concerned; None while it is under way."""
    generation, rules = state.mine.generation, spec.rules
    if generation is not None and generation.outcome is not None:
        return RunOutcome(generation.outcome, generation.reason, spec.launch, generation.is_final)
    if state.ended is not None:
        return state.ended
    if spec.is_fixed and len(spec.hosts) > 1:
        return _find_loss(state, now, spec)
    if len(state.present) >= rules.fewest and not (state.mine.stop and generation is None):
        return None
    if state.mine.stop:
        return RunOutcome("interrupted", NOT_STARTED if spec.is_fixed else "", spec.launch)
    has_waited = now - state.alive_since > _ALONE_S
    is_given_up = has_waited or _is_deserted(state, now, spec)
    return RunOutcome(ALONE, "too few hosts were left", spec.launch) if is_given_up else None


def _find_loss(state: AgentState, now: float, spec: AgentSpec) -> RunOutcome | None:
    """How the run has ended for a host of a fixed group if it has lost its leader, or a leader a host too early."""
    if spec.host == LEADER and state.mine.generation is not None:
        return None  # `_lead` handles that, and tells the others
    for host in range(1, len(spec.hosts)) if spec.host == LEADER else [LEADER]:
        heard_at = state.peers[host].heard_at if host in state.peers else state.started_at
        if now - heard_at > spec.silence_s:
            loss, failure = describe_loss(spec.hosts[host].name, now - heard_at), state.mine.failure
            if failure is not None:
                loss = failure.message if failure.is_first_hand else f"{loss}; then {failure.message}"
            return RunOutcome("failed", loss, spec.launch)
    return None


def describe_loss(name: str, silent_s: float) -> str:
    how = "has gone" if math.isinf(silent_s) else f"has been silent for {silent_s:.0f} seconds,"
    return f"{name} {how} without a word"


def _is_deserted(state: AgentState, now: float, spec: AgentSpec) -> bool:
    """Whether too many of the agents have gone for the run to continue."""
    patience_s = _DESERTED * spec.silence_s
    absent = [host for host, since in state.absent_since.items() if now - since > patience_s]
    return state.mine.generation is not None and len(spec.hosts) - len(absent) < spec.fewest


def have_all_heard(state: AgentState, ended: RunOutcome) -> bool:
    """Whether all living hosts know how the run has ended."""
    told = [state.peers[host].heartbeat.generation for host in state.alive if host in state.peers]
    return all(generation is not None and generation.outcome == ended.outcome for generation in told)
