"""Curves of several runs for one chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echelon.dashboard.overlay import Axis, View, group_curves, mean_and_spread, overlay_curves
from echelon.dashboard.run_curves import RunCurves
from echelon.explain.curves import smooth
from tests.explain.made_runs import MadeRun


def made(folder: Path, **values: Any) -> RunCurves:
    curves = RunCurves(MadeRun(**values).write(folder))
    curves.update()
    return curves


def test_smoothing_is_that_of_reports_and_leaves_the_points_alone(tmp_path: Path) -> None:
    run = made(tmp_path / "run", steps=200, loss=lambda step: 3 + (step * 7919 % 13) / 6)
    losses = [3 + (step * 7919 % 13) / 6 for step in range(1, 201)]
    training, _ = overlay_curves([("run", run)], View("loss"))
    assert training["y"] == pytest.approx(losses, rel=1e-5)
    assert training["smooth_y"] == pytest.approx(smooth(losses), rel=1e-5)
    wide, _ = overlay_curves([("run", run)], View("loss", smoothing=10))
    assert wide["smooth_y"] == pytest.approx(smooth(losses, 10), rel=1e-5)
    bare, validation = overlay_curves([("run", run)], View("loss", smoothing=0))
    assert bare["smooth_y"] == validation["smooth_y"] == []


def test_a_schedule_has_no_noise_to_smooth(tmp_path: Path) -> None:
    run = made(tmp_path / "run", steps=200)
    (rate,) = overlay_curves([("run", run)], View("learning_rate"))
    assert rate["smooth_y"] == []
    (group, *_) = group_curves({"all": [run]}, View("learning_rate", smoothing=100))
    assert group["mean"] == pytest.approx([1e-3] * len(group["mean"]))


def test_the_axis_may_be_time_targets_or_money(tmp_path: Path) -> None:
    run = made(tmp_path / "run", steps=60, hosts=2, hosts_given=3)
    axes: tuple[tuple[Axis, float | None], ...] = (
        ("step", None),
        ("time", None),
        ("seen", None),
        ("money", 12.0),
    )
    last = {
        axis: overlay_curves([("run", run)], View("loss", axis, hourly=hourly))[0]["x"][-1]
        for axis, hourly in axes
    }
    assert last["step"] == 60
    assert last["time"] == pytest.approx(6.0, rel=0.05)
    assert last["seen"] == 60_000
    assert last["money"] == pytest.approx(12.0 * 3 * 6.0 / 3600, rel=0.05)


def test_a_chart_has_all_curves_below_a_name(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    names = [curve["name"] for curve in overlay_curves([("run", run)], View("phases"))]
    assert names == sorted(
        f"phase/{phase}" for phase in ("data", "forward", "backward", "communication", "optimiser", "other")
    )
    assert [curve["name"] for curve in overlay_curves([("run", run)], View("valid/bleu"))] == ["valid/bleu"]
    assert overlay_curves([("run", run)], View("../../etc/passwd")) == []


def test_mean_and_spread_are_those_of_the_curves_that_reach_a_place() -> None:
    places = np.arange(1.0, 11)
    grid, mean, spread = mean_and_spread(
        [(places, places), (places, places + 2), (places[:5], places[:5] + 4)]
    )
    first = np.array([1.0, 3.0, 5.0])
    assert (mean[0], spread[0]) == pytest.approx((first.mean(), first.std(ddof=1)))
    assert (grid[-1], mean[-1], spread[-1]) == pytest.approx((10.0, 11.0, np.std([10, 12], ddof=1)))


def test_seeds_become_a_mean_with_its_spread(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(seed), loss=lambda step, seed=seed: 4.0 + seed) for seed in range(3)]
    (group, _) = group_curves({"rate = 0.1": runs}, View("loss"))
    assert (group["group"], group["runs"], group["name"]) == ("rate = 0.1", 3, "loss")
    assert group["mean"][-1] == pytest.approx(5.0)
    assert group["high"][-1] - group["low"][-1] == pytest.approx(2.0)
