"""What an agent remembers from one decision to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from echelon.agent.generation import Heard, Heartbeat
from echelon.agent.outcome import RunOutcome

_MOST_PENALTY_S = 120.0


@dataclass(frozen=True)
class Peer:
    """What is known of another host."""

    heartbeat: Heartbeat
    heard_at: float
    since: float
    """When it was first heard after the last gap."""
    losses: int = 0


@dataclass(frozen=True)
class AgentState:
    """All that an agent remembers from one decision to the next."""

    mine: Heartbeat
    started_at: float
    alive_since: float
    """Since when the living hosts have been the same ones."""
    folder_seen_at: float
    """When the shared run folder was last seen."""
    peers: Mapping[int, Peer] = field(default_factory=dict)
    alive: tuple[int, ...] = ()
    """The hosts that this one hears and that hear it."""
    present: frozenset[int] = frozenset()
    """The hosts that are there: those above, and hosts that the hubs among them hear."""
    hubs: Mapping[int, float] = field(default_factory=dict)
    """The hosts to talk to, and since when (topology.py)."""
    absent_since: Mapping[int, float] = field(default_factory=dict)
    workers_of: tuple[int, int] | None = None
    """The generation (its order) whose workers run on this host."""
    trouble_since: float | None = None
    failed_at: tuple[float, ...] = ()
    """When generations that this host led have failed."""
    counted: tuple[int, int] | None = None
    """The generation whose failure is among them: its successor may have to wait for the run folder."""
    ended: RunOutcome | None = None
    """How the run has ended, if the run folder said so rather than another host."""

    def view(self, now: float, rejoin_s: float) -> dict[int, Heard]:
        return {
            host: Heard(peer.heartbeat, now - peer.heard_at, now - peer.since - _penalty_s(peer, rejoin_s))
            for host, peer in self.peers.items()
        }


def _penalty_s(peer: Peer, rejoin_s: float) -> float:
    """A host that comes and goes waits longer each time before it is taken in: each time costs a restart."""
    return min(rejoin_s * (2.0**peer.losses - 1), _MOST_PENALTY_S)


def first_state(host: int, now: float) -> AgentState:
    return AgentState(Heartbeat(host), started_at=now, alive_since=now, folder_seen_at=now)
