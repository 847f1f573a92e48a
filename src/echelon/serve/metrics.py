"""What a server counts and measures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from echelon.serve.audit import Handled

_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS_LINES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


class Metrics:
    """The metrics of one server, in a registry of its own: two servers in one process count separately."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "echelon_requests",
            "Requests answered",
            ("method", "path", "status", "token"),
            registry=self._registry,
        )
        self._request_seconds = self._seconds("request", "Time from a request's first byte to its answer's")
        self.wait_seconds = self._seconds("wait", "Time that a line waited for its batch")
        self.compute_seconds = self._seconds("compute", "Time to compute a batch or an image")
        self.batch_lines = Histogram(
            "echelon_batch_lines", "Lines of a batch", registry=self._registry, buckets=_BOUNDS_LINES
        )
        self.queue_lines = Gauge("echelon_queue_lines", "Lines or images that wait", registry=self._registry)
        self.audit_lost = Gauge(
            "echelon_audit_lost",
            "Requests that could not be written to the audit log",
            registry=self._registry,
        )

    def _seconds(self, what: str, documentation: str) -> Histogram:
        return Histogram(f"echelon_{what}_seconds", documentation, registry=self._registry, buckets=_BOUNDS_S)

    def count_request(self, handled: Handled) -> None:
        """Count an answer. Labels never come from a client, because each combination is kept for ever."""
        method = handled.method if handled.method in _METHODS else "other"
        self._requests.labels(method, handled.route, str(handled.status), handled.token).inc()
        self._request_seconds.observe(handled.seconds)

    @property
    def num_requests(self) -> int:
        samples = (sample for metric in self._requests.collect() for sample in metric.samples)
        return sum(int(sample.value) for sample in samples if sample.name == "echelon_requests_total")

    def render(self) -> str:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry).decode()
