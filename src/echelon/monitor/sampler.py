"""What a host does while it trains: processors, memory, disks, network interfaces and GPUs, every other second.

The first worker of each host samples, in a thread, into its own records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from echelon.monitor.interface_counters import read_interfaces
from echelon.monitor.records import RecordWriter

SAMPLE_S = 2.0


class Gpus:
    """The GPUs of this host as NVIDIA's management library shows them; none if the library is missing."""

    def __init__(self) -> None:
        self._nvml: Any = None
        with contextlib.suppress(Exception):  # no package, no driver, no GPU: each has an error of its own
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

    def sample(self) -> list[dict[str, float]]:
        """Each GPU's load (`busy`) and memory as shares, watts and degrees Celsius, as far as it reports them."""
        count = self._ask(lambda nvml: nvml.nvmlDeviceGetCount()) if self._nvml else None
        return [self._sample(number) for number in range(count or 0)]

    def _sample(self, number: int) -> dict[str, float]:
        handle = self._ask(lambda nvml: nvml.nvmlDeviceGetHandleByIndex(number))
        if handle is None:
            return {}
        memory = self._ask(lambda nvml: nvml.nvmlDeviceGetMemoryInfo(handle))
        values = {
            "busy": self._ask(lambda nvml: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            "memory": memory and memory.used / memory.total,
            "watts": self._ask(lambda nvml: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "celsius": self._ask(
                lambda nvml: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """An answer of the library; None if this GPU has none: parts of a GPU and virtual ones refuse much."""
        with contextlib.suppress(self._nvml.NVMLError):
            return question(self._nvml)
        return None


class HostSampler:
    """Takes samples; counters are given as differences to the sample before."""

    def __init__(self, host: str, card: str | None, gpus: Gpus | None = None) -> None:
        self._host, self._card, self._gpus = host, card, gpus or Gpus()
        self._before = _count()

    def sample(self) -> dict[str, Any]:
        """One sample, as a record's values. Bytes are of the whole interval, None if nothing counts them; `card` is
        the cluster's."""
        before, self._before = self._before, _count()
        now, memory = self._before, psutil.virtual_memory()
        read, written = _disk_bytes(before["disk"], now["disk"])
        return {
            "host": self._host,
            "seconds": round(now["time"] - before["time"], 3),
            "processors": round(_busy_share(before["processors"], now["processors"]), 3),
            "memory": memory.total - memory.available,
            "memory_total": memory.total,
            "disk_read": read,
            "disk_written": written,
            "card": self._card,
            "cards": _moved(before["cards"], now["cards"]),
            "gpus": self._gpus.sample(),
        }


def _count() -> dict[str, Any]:
    return {
        "time": time.monotonic(),
        "cards": read_interfaces(),
        "processors": psutil.cpu_times(),
        "disk": _count_disk(),
    }


def _count_disk() -> Any:
    with contextlib.suppress(OSError, NotImplementedError):  # containers may hide what counts disks
        return psutil.disk_io_counters()
    return None


def _disk_bytes(before: Any, now: Any) -> tuple[int, int] | tuple[None, None]:
    """Bytes that all disks read and wrote between two counts."""
    if before is None or now is None:
        return None, None
    return now.read_bytes - before.read_bytes, now.write_bytes - before.write_bytes


def _busy_share(before: Any, now: Any) -> float:
    """The share of all processors' time between two counts that was not idle."""
    spent = {name: getattr(now, name) - getattr(before, name) for name in now._fields if name != "guest"}
    total = sum(spent.values())
    return 1 - (spent["idle"] + spent.get("iowait", 0.0)) / total if total > 0 else 0.0


def _moved(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Bytes that each card received and sent between two counts, for those that moved any."""
    moved = {
        name: (max(0, received - before[name][0]), max(0, sent - before[name][1]))
        for name, (received, sent) in now.items()
        if name in before
    }
    return {name: both for name, both in moved.items() if any(both)}


class SamplerThread:
    """Writes a sample at a fixed interval until it is stopped."""

    def __init__(self, sampler: HostSampler, records: RecordWriter, every_s: float = SAMPLE_S) -> None:
        self._sampler, self._records, self._every_s = sampler, records, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._write()

    def stop(self) -> None:
        """Write a last sample and end."""
        self._stop.set()
        self._thread.join()
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(Exception):  # a failed measurement must not end a training
            self._records.write("host", **self._sampler.sample())
