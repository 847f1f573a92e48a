"""A run on hosts whose line is slow, and what its report says: measured on real hosts, not made up."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from echelon.explain.report import build_report
from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
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
    assert 0.3 < network["line_share"] <= 1
    assert {sample["host"] for sample in report.history.host_samples} == set(lab.hosts)
    assert {sample["card"] for sample in report.history.host_samples} == {"eth0"}
    assert document["improvements"][0]["name"] in ("faster network", "local", "low_rank")


LARGE = ("model.d_model=256", "model.d_ff=512", "evaluate.every=1000", "checkpoint.every=1000")
"""So that what TCP and Ethernet add is little beside the gradient, and nothing but steps is counted."""


@pytest.mark.parametrize(
    ("settings", "bytes_per_parameter"),
    [
        (["train.exchange=compressed", "exchange.wire=bf16"], 2),
        pytest.param(
            ["train.exchange=compressed", "exchange.wire=int8"], 1 + 4 / 512, marks=pytest.mark.long
        ),
        pytest.param(["train.exchange=low_rank"], None, marks=pytest.mark.long),
        (["train.exchange=local", "exchange.every=8", "exchange.overlap=2", "exchange.replicas=3"], 2 / 8),
    ],
)
def test_a_card_sends_what_the_formula_of_the_exchange_says(
    settings: list[str], bytes_per_parameter: float | None, lab: Lab, train: Callable[..., Training]
) -> None:
    """The table in docs/exchange.md; where no number of bytes a parameter follows from it, the report's own count."""
    # 32 steps: the checkpoint before the last scoring, for which workers average, then falls on a step with an average.
    sets = [word for setting in ("train.steps=32", *LARGE, *settings) for word in ("--set", setting)]
    training = train(lab.shared, *sets)
    training.finish()
    report = build_report(training.run)
    facts = report.history.facts
    if bytes_per_parameter is None:
        expected = report.to_json()["network"]["expected_bytes_per_step"]
        assert expected < 0.5 * 4 * facts["parameters"], "most matrices gain"
    else:
        expected = 2 * 2 / 3 * bytes_per_parameter * facts["parameters"]
    assert bytes_of_a_step(training) == pytest.approx(expected, rel=0.08)


def bytes_of_a_step(training: Training) -> float:
    """The mean of what the first host's card sent, over two whole periods of eight steps.

    They begin halfway between two averages of the weights, which are sent in the background of the next two steps.
    """
    records = read_records(training.run.worker_records(0))
    sent = [record["sent"] for record in records if record["kind"] == "step" and 12 < record["step"] <= 28]
    assert len(sent) == 16
    return statistics.fmean(sent)
