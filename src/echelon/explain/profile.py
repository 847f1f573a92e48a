"""A short measurement of a recipe on real hardware, which a plan counts with in place of data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import UserError
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
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"this is no profile: {error}; make one with `echelon benchmark --json`") from None


def load_profile(path: Path, slots: int) -> Profile:
    """A profile from a file that `echelon benchmark --workers 1 --json` has written."""
    try:
        return profile_of(read_json(path), slots)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a profile: {error}") from None
