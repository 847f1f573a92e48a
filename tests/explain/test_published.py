"""The plan against figures that others published of their own runs; the table is printed (`pytest -s`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echelon.explain.cost import EFFICIENCY
from tests.explain.published import IMAGES_PER_CORE_S, VALIDATION_PICTURES, Row, compare, fitted_efficiency


@pytest.fixture
def document(real_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((real_data / "published-runs.json").read_text())
    return found


def test_the_plan_reproduces_published_runs(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = compare(document)
    with capsys.disabled():
        print(f"\n{'run':<22}{'what':<24}{'published':>10}{'planned':>10}{'error':>9}   range")
        print("\n".join(map(str, rows)))
    assert len(rows) == 16
    for row in rows:
        assert abs(row.error) <= allowed_error(row), row
        assert row.published in row.predicted, row


def allowed_error(row: Row) -> float:
    """What the runs are good for decides how near the plan has to come."""
    if row.what.startswith("MB"):
        return 0.08
    if "100mbit" in row.run:
        return 0.20
    if row.run == "2x1-t4-resnet18":
        return 0.15
    return float("inf")


def test_constants_are_fitted_on_the_runs_for_calibration_only(document: dict[str, Any]) -> None:
    calibration = {run["id"]: run for run in document["runs"] if "calibration" in run["use"]}
    transformer, pictures = calibration["4x1-t4-ec2"], calibration["1x1-t4-resnet18"]
    assert EFFICIENCY["gpu float32"] == pytest.approx(fitted_efficiency(document, transformer), rel=0.01)
    batches = pictures["epochs"] * pictures["batches_per_epoch"]
    seen = batches * pictures["images_per_gpu"] + pictures["epochs"] * VALIDATION_PICTURES
    assert pytest.approx(seen / pictures["seconds"] / 8, rel=0.01) == IMAGES_PER_CORE_S
