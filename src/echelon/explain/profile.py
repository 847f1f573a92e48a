"""A short measurement of a recipe on real hardware, which a plan uses instead of data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import UserError
from echelon.explain.clusters import Cluster
from echelon.explain.hardware import find_gpu_like
from echelon.runfolder import read_json


@dataclass(frozen=True)
class Profile:
    """One worker's step, by what it depends on."""

    slot_seconds: float
    """Loading, forward and backward of one slot."""
    optimiser_seconds: float
    other_seconds: float
    spread: float
    """Standard deviation of the steps' times, relative to their mean."""
    seconds_per_step: float
    """As measured, all slots on one worker."""
    device: str | None = None
    """What it was measured on, as its driver or the kernel calls it; None if unknown."""
    threads: int = 1

    def fits(self, cluster: Cluster) -> bool:
        """Whether the cluster computes with what this was measured on: the same GPU, or as many cores."""
        if self.device is None:
            return True
        gpu = find_gpu_like(self.device)
        if gpu is not None or cluster.device.is_gpu:
            return gpu is not None and gpu.name == cluster.device.name
        return self.threads == max(1, round(cluster.cores))


def profile_of(benchmark: Mapping[str, Any], slots: int) -> Profile:
    """From the keys of `benchmark --json`, measured with one worker."""
    try:
        if benchmark["workers"] != 1:
            raise UserError(
                "a profile is measured with one worker; use `echelon benchmark --workers 1 --json`"
            )
        phases = benchmark["breakdown"]
        per_slot = (phases["data"] + phases["forward"] + phases["backward"]) / slots
        return Profile(
            slot_seconds=per_slot,
            optimiser_seconds=phases["optimiser"],
            other_seconds=phases["other"] + phases["checkpoint"],
            spread=benchmark.get("spread", 0.03),
            seconds_per_step=benchmark["seconds_per_step"],
            device=benchmark.get("device"),
            threads=benchmark.get("threads", 1),
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"this is no profile: {error}; make one with `echelon benchmark --json`") from None


def load_profile(path: Path, slots: int) -> Profile:
    """A profile from a file that `echelon benchmark --workers 1 --json` has written."""
    try:
        return profile_of(read_json(path), slots)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a profile: {error}") from None
