"""A plan of two hosts that nobody makes."""

from __future__ import annotations

from pathlib import Path

from echelon.lab.layout import LabPlan, host_names


def sample_plan(name: str = "lab", subnet: int = 3, folder: Path = Path("/lab")) -> LabPlan:
    return LabPlan(
        name=name, folder=folder, cpus=0.5, subnet=subnet, rates=dict.fromkeys(host_names(2), "1gbit")
    )
