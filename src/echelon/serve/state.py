"""What the endpoints of a server share: its model, limits, metrics and audit log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from echelon.serve.access import Access
from echelon.serve.audit import AuditLog, Handled
from echelon.serve.guard import OPEN_PATHS
from echelon.serve.limits import ByteBudget, Limits
from echelon.serve.metrics import Metrics


class EngineInfo(Protocol):
    """What computes a model."""

    @property
    def name(self) -> str: ...


class ServedModel(Protocol):
    """A model that is ready to answer."""

    @property
    def task(self) -> str: ...

    @property
    def engine(self) -> EngineInfo: ...


@dataclass
class ServerState:
    """What the endpoints share."""

    model: ServedModel
    name: str
    precision: str
    limits: Limits
    access: Access = field(default_factory=Access)
    audit: AuditLog | None = None
    metrics: Metrics = field(default_factory=Metrics)
    num_waiting: Callable[[], int] = lambda: 0
    """Lines or pictures in the queue."""
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.budget = ByteBudget(self.limits)
        self.metrics.queue_lines.set_function(self._num_waiting_now)

    def _num_waiting_now(self) -> int:
        return self.num_waiting()  # which changes when the queue is made

    def note(self, handled: Handled) -> None:
        """Count a request, and log it unless it is a load balancer's."""
        self.metrics.count_request(handled)
        if self.audit is not None and handled.path not in OPEN_PATHS:
            self.audit.write(handled)
            self.metrics.audit_lost.set(self.audit.num_lost)

    def why_not_ready(self) -> str | None:
        """Why it cannot take another request; None if it can."""
        if self.is_stopping:
            return "stopping"
        if self.num_waiting() >= self.limits.queue_lines or not self.budget.has_room(self.limits.body_bytes):
            return "too many requests are waiting"
        return None
