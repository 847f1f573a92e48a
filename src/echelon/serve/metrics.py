"""Counters, gauges and histograms, shown in the text form that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LINE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass
class Histogram:
    """How many values lie at or below each bound."""

    help: str
    bounds: tuple[float, ...] = _BOUNDS
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What the server has done. Used from one thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._histograms = {
            "echelon_request_seconds": Histogram("Time from a request's first byte to its answer's"),
            "echelon_wait_seconds": Histogram("Time that a line waited for its batch"),
            "echelon_compute_seconds": Histogram("Time to translate a batch"),
            "echelon_batch_lines": Histogram("Lines of a batch", _LINE_BOUNDS),
        }

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests[method, path, status] += 1
        self.observe("echelon_request_seconds", seconds)

    def observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def gauge(self, name: str, help_: str, value: Callable[[], float]) -> None:
        """A number that is asked for when it is shown."""
        self._gauges[name] = (help_, value)

    @property
    def num_requests(self) -> int:
        return sum(self._requests.values())

    def render(self) -> str:
        """All of them as text."""
        lines = ["# HELP echelon_requests_total Requests answered", "# TYPE echelon_requests_total counter"]
        for (method, path, status), count in sorted(self._requests.items()):
            labels = f'method="{method}",path="{path}",status="{status}"'
            lines.append(f"echelon_requests_total{{{labels}}} {count}")
        for name, (help_, value) in self._gauges.items():
            lines += [f"# HELP {name} {help_}", f"# TYPE {name} gauge", f"{name} {value():g}"]
        for name, histogram in self._histograms.items():
            lines += _histogram_lines(name, histogram)
        return "\n".join(lines) + "\n"


def _histogram_lines(name: str, histogram: Histogram) -> list[str]:
    lines = [f"# HELP {name} {histogram.help}", f"# TYPE {name} histogram"]
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        lines.append(f'{name}_bucket{{le="{bound:g}"}} {below}')
    count = sum(histogram.counts)
    lines += [
        f'{name}_bucket{{le="+Inf"}} {count}',
        f"{name}_sum {histogram.total:g}",
        f"{name}_count {count}",
    ]
    return lines
