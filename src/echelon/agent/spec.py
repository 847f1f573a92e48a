"""What an agent is told when it is started: who the hosts are, which one it is, and what it may do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from echelon.agent.generation import Generation, Rules
from echelon.agent.restarts import RestartPolicy
from echelon.agent.tls import Credentials


@dataclass(frozen=True)
class HostSpec:
    """One host as the others know it."""

    name: str
    address: str
    """Its address on the cluster's network; its agent and its workers listen there and nowhere else."""
    interface: str
    workers: int
    fewest_workers: int | None = None
    """After each failure it continues with one worker fewer, down to this many; None: always with `workers`."""

    def workers_in(self, generation: Generation) -> int:
        if self.fewest_workers is None:
            return self.workers
        return max(self.fewest_workers, self.workers - generation.workers_lost)


@dataclass(frozen=True)
class AgentSpec:
    """Everything one agent needs; it comes over SSH, as it holds the run's secret."""

    run: str
    """The run's folder, the same path on every host."""
    host: int
    """Which of the hosts it is."""
    hosts: tuple[HostSpec, ...]
    shares_folder: bool
    """Whether all hosts see the same run folder."""
    fewest: int
    most: int
    silence_s: float
    hang_s: float
    max_restarts: int = 0
    window_s: float = 0.0
    port: int = 0
    """Where every agent of `--hosts` listens."""
    secret: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Files of the run folder, in base64, for a host that does not see the launcher's."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables for the workers, in addition to this host's."""
    roster_digest: str = ""
    """The digest of hosts.json, so that `status`, `stop` and others work on this host too (launch/trust.py)."""
    credentials: Credentials | None = None
    """For --tls: this host's key and certificate, and the authority of all hosts'."""
    program: tuple[str, ...] = ()
    """What starts a worker, followed by the run's path; empty for this Python."""
    is_fixed: bool = False
    """No host can be replaced, and nobody else can take the run folder over: this machine alone, or processes of a
    site's launcher."""

    @property
    def me(self) -> HostSpec:
        return self.hosts[self.host]

    @property
    def needs_lease(self) -> bool:
        """Whether other hosts might write to the run folder: those left behind by a cut network, for example."""
        return self.shares_folder and not self.is_fixed

    @property
    def launch(self) -> str:
        """Tells this launch of the run from others, without giving its secret away."""
        return hashlib.sha256(f"launch {self.secret}".encode()).hexdigest()[:16]

    @property
    def rules(self) -> Rules:
        rules = Rules(len(self.hosts), self.fewest, self.most, self.silence_s, is_fixed=self.is_fixed)
        return rules if len(self.hosts) > 1 else replace(rules, settle_s=0.0)

    @property
    def policy(self) -> RestartPolicy:
        return RestartPolicy(self.max_restarts, self.window_s)


_SPEC = TypeAdapter(AgentSpec)


def dump_spec(spec: AgentSpec) -> bytes:
    return _SPEC.dump_json(spec)


def parse_spec(text: bytes) -> AgentSpec:
    """What `dump_spec` made; ValueError for anything else."""
    return _SPEC.validate_json(text)
