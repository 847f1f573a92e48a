"""What hosts were doing, from their samples. A value that was not measured, or is not a number, is None."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from echelon.explain.history import History
from echelon.explain.units import show_bytes, show_rate, show_share
from echelon.monitor.run_state import FRESH_S
from echelon.monitor.screen import show_seconds

COLUMNS = ("processors", "GPUs", "hottest", "memory", "disk read", "disk written", "card", "in", "out")
_NOTHING = "-"


@dataclass(frozen=True)
class HostLoad:
    """One sample, as shares and as bytes a second."""

    host: str
    processors: float | None
    """Share of them that is busy."""
    gpus: int
    gpus_busy: float | None
    """Mean share, as the driver counts it."""
    celsius: float | None
    """Of the hottest GPU."""
    memory: tuple[float, float] | None
    """Bytes in use, and of all."""
    disk_read: float | None
    disk_written: float | None
    card: str | None
    """The cluster's."""
    received: float
    sent: float
    seconds: float
    """What the sample spans."""

    @property
    def busy(self) -> float | None:
        """Busy share of its GPUs, or of its processors if it has no GPU."""
        return self.gpus_busy if self.gpus else self.processors

    def cells(self) -> dict[str, str]:
        """The cells of a table row, by COLUMNS."""
        count = f" ({self.gpus})" if self.gpus else ""
        memory = self.memory and f"{self.memory[0] / 2**30:.1f} of {self.memory[1] / 2**30:.0f} GiB"
        return {
            "processors": _NOTHING if self.processors is None else show_share(self.processors),
            "GPUs": (_NOTHING if self.gpus_busy is None else show_share(self.gpus_busy)) + count,
            "hottest": _NOTHING if self.celsius is None else f"{self.celsius:.0f} °C",
            "memory": memory or _NOTHING,
            "disk read": _NOTHING if self.disk_read is None else f"{show_bytes(self.disk_read)}/s",
            "disk written": _NOTHING if self.disk_written is None else f"{show_bytes(self.disk_written)}/s",
            "card": self.card or _NOTHING,
            "in": show_rate(self.received),
            "out": show_rate(self.sent),
        }


def host_state(sample: Mapping[str, Any]) -> HostLoad:
    """The values of a `host` record, which is untrusted input."""
    seconds = _number(sample, "seconds") or 1.0
    listed = sample.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    busy = [value for gpu in gpus if (value := _number(gpu, "busy")) is not None]
    heat = [value for gpu in gpus if (value := _number(gpu, "celsius")) is not None]
    memory, total = _number(sample, "memory"), _number(sample, "memory_total")
    read, written = _number(sample, "disk_read"), _number(sample, "disk_written")
    card = str(sample["card"]) if sample.get("card") else None
    received, sent = _moved(sample.get("cards"), card)
    return HostLoad(
        host=str(sample.get("host", "")),
        processors=_number(sample, "processors"),
        gpus=len(gpus),
        gpus_busy=sum(busy) / len(busy) if busy else None,
        celsius=max(heat, default=None),
        memory=None if memory is None or total is None else (memory, total),
        disk_read=None if read is None else read / seconds,
        disk_written=None if written is None else written / seconds,
        card=card,
        received=received / seconds,
        sent=sent / seconds,
        seconds=seconds,
    )


def _moved(cards: Any, card: str | None) -> tuple[float, float]:
    """Bytes that a network interface has received and sent."""
    match cards.get(card) if isinstance(cards, dict) else None:
        case [int() | float() as received, int() | float() as sent]:
            return received, sent
    return 0.0, 0.0


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def host_table(
    samples: Sequence[Mapping[str, Any]],
    columns: Collection[str] = COLUMNS,
    lost: Mapping[str, float] = MappingProxyType({}),
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Heading and rows: each host's last sample, without the columns that no host has anything in. `lost` hosts, by
    how long they have been silent, are shown as such, and without what they did before."""
    last = {str(sample.get("host", "")): sample for sample in samples}
    latest = {host: host_state(sample).cells() for host, sample in last.items()}
    shown = [name for name in columns if any(cells[name] != _NOTHING for cells in latest.values())]
    rows = []
    for host, cells in latest.items():
        if host in lost:
            name = f"{host} (lost, silent for {show_seconds(lost[host])})"
            rows.append((name, [_NOTHING] * len(shown)))
        else:
            rows.append((host, [cells[column] for column in shown]))
    return ["host", *shown], rows


def find_lost(history: History) -> dict[str, float]:
    """Hosts that have left the run, with the seconds since their last sample: the run was restarted without them, or
    they fell silent long before the others or, while it trains, long before now."""
    offsets = _clock_offsets(history)
    last = {
        host: (_number(sample, "time") or 0.0) - offsets.get(host, 0.0)
        for sample in history.host_samples
        for host in [str(sample.get("host", ""))]
    }
    newest = max(last.values(), default=0.0)
    idle_s = _seconds_since_records(history) if history.outcome == "training" else 0.0
    silent = {host: newest - at + idle_s for host, at in last.items()}
    taking_part = {worker.host for worker in (*history.workers, *history.servers)}
    return {
        host: silent_s
        for host, silent_s in silent.items()
        if silent_s >= FRESH_S or (len(history.starts) > 1 and host not in taking_part)
    }


def _clock_offsets(history: History) -> dict[str, float]:
    """By how many seconds each host's clock is ahead of the first one's: all workers end a step together."""
    ends = {step["step"]: _number(step, "time") for step in history.first.steps}
    found = {}
    for worker in history.workers:
        for step in reversed(worker.steps):
            own, first = _number(step, "time"), ends.get(step["step"])
            if own is not None and first is not None:
                found[worker.host] = own - first
                break
    return found


def _seconds_since_records(history: History) -> float:
    """Seconds since anything of the run was written."""
    written = [file.stat().st_mtime for file in history.run.records.glob("worker-*.jsonl")]
    return max(0.0, time.time() - max(written)) if written else 0.0
