"""A run on hosts whose line is slow, and what its report says: measured on real hosts, not made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from echelon.explain.report import build_report
from echelon.lab.lab import Lab
from tests.lab.training import Training

pytestmark = pytest.mark.slow


def test_on_a_slow_line_the_network_is_found_to_be_the_bottleneck(
    lab: Lab, train: Callable[..., Training]
) -> None:
    for host in lab.hosts:
        lab.rate(host, "5mbit")
    try:
        training = train(lab.shared, "--set", "train.steps=20", "--set", "model.d_model=64")
        training.finish()
    finally:
        for host in lab.hosts:
            lab.rate(host, "1gbit")
    report = build_report(training.run)
    document = report.to_json()
    assert document["hosts"] == 3
    assert document["bound"] == "network"
    assert document["answers"]["network"]["verdict"] == "yes"
    network = document["network"]
    assert network["bytes_per_step"] == pytest.approx(network["expected_bytes_per_step"], rel=0.08)
    assert network["line_bytes_per_s"] == pytest.approx(5e6 / 8, rel=0.25)
    assert 0.3 < network["line_share"] < 1.1
    assert {sample["host"] for sample in report.history.host_samples} == set(lab.hosts)
    assert {sample["card"] for sample in report.history.host_samples} == {"eth0"}
    assert document["improvements"][0]["name"] in ("faster network", "local", "low_rank")
