"""A profile says how fast what it was measured on is, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.plan import Plan, PlanOptions, make_plan
from echelon.explain.clusters import parse_cluster
from echelon.explain.profile import Profile

XEON = Profile(0.1, 0.01, 0.002, 0.03, 0.412, "Intel(R) Xeon(R) CPU @ 2.90GHz", threads=2)
T4 = Profile(0.1, 0.01, 0.002, 0.03, 0.412, "Tesla T4", threads=4)


@pytest.mark.parametrize(
    ("profile", "spec", "fits"),
    [
        (T4, "4xg4dn.2xlarge", True),
        (T4, "2x(1xV100, 1gbit)", False),
        (T4, "2x(2xcpu, 1gbit)", False),
        (XEON, "4xg4dn.2xlarge", False),
        (XEON, "3x(2xcpu, 1gbit)", True),
        (XEON, "3x(16xcpu, 1gbit)", False),
        (Profile(0.1, 0.01, 0.002, 0.03, 0.412), "4xg4dn.2xlarge", True),  # nobody said what it is of
    ],
)
def test_a_profile_fits_clusters_with_the_same_device(profile: Profile, spec: str, fits: bool) -> None:
    assert profile.fits(parse_cluster(spec)) is fits


def plan_with(profile: Path, recipe: Path, *clusters: str) -> Plan:
    options = PlanOptions(recipe, clusters, profile=str(profile), sweep="hosts=1,2")
    return make_plan(options, Console(quiet=True))


def test_other_clusters_are_planned_from_data_sheets_and_it_is_said(tmp_path: Path, toy_recipe: Path) -> None:
    phases = {"data": 0.0, "forward": 9.0, "backward": 9.0, "optimiser": 0.0, "other": 0.0, "checkpoint": 0.0}
    measured = {"workers": 1, "threads": 2, "device": "Xeon", "breakdown": phases, "seconds_per_step": 18.0}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(measured))
    plan = plan_with(file, toy_recipe, "4xg4dn.2xlarge", "1x(2xcpu, 1gbit)")
    gpus, cores = plan.clusters
    assert cores.seconds_per_step == pytest.approx(18.0, rel=0.1)
    assert gpus.seconds_per_step < 1
    assert plan.sweeps["4xg4dn.2xlarge"][0].seconds_per_step["all_reduce"] < 1
    assert plan.to_json()["unprofiled"] == ["4xg4dn.2xlarge"]
    assert "4xg4dn.2xlarge: computed from data sheets, as the profile was measured on" in plan.to_text()
    assert "profile measured on real hardware" in plan.to_text()
