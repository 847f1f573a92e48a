"""Runs that other people published, as workloads and clusters of ours, beside what they measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest import mock

from echelon.explain.clusters import Cluster, parse_cluster
from echelon.explain.cost import (
    EFFICIENCY,
    best_algorithm,
    predict,
    step_cost,
)
from echelon.explain.trained_parameters import matrices_among
from echelon.explain.uncertainty import Estimate, scenarios
from echelon.explain.workload import (
    Workload,
    image_layers,
    transformer_activations,
    transformer_layers,
)
from echelon.shapes import image_models, resnet, transformer
from echelon.shapes.transformer import PRESETS, TokenCounts, TransformerShape, parameter_count

VALIDATION_PICTURES = 50_000
IMAGES_PER_CORE_S = 61.0
"""JPEGs of ImageNet that one virtual core decodes and crops a second: fitted on the run of pictures that is marked for
calibration."""


@dataclass(frozen=True)
class Row:
    """One figure: what was published, and what is predicted."""

    run: str
    what: str
    published: float
    predicted: Estimate
    uses: tuple[str, ...]

    @property
    def error(self) -> float:
        return self.predicted.expected / self.published - 1

    def __str__(self) -> str:
        p = self.predicted
        return (
            f"{self.run:<22}{self.what:<24}{self.published:>10.3g}{p.expected:>10.3g}{self.error:>+9.1%}"
            f"   {p.low:.3g} to {p.high:.3g}   {', '.join(self.uses)}"
        )


def base_shape(model: dict[str, Any]) -> TransformerShape:
    shape = TransformerShape(model["vocabulary"], **PRESETS["base"])
    if parameter_count(shape) != model["parameters"]:
        shape = replace(shape, norm="post")
    return shape


def transformer_workload(document: dict[str, Any], pairs_per_gpu: int, gpus: int, precision: str) -> Workload:
    """A step of so many sentence pairs on every GPU."""
    model = document["transformer_base"]
    shape, tokens = base_shape(model), model["mean_tokens_per_pair_source_plus_target"]
    sizes = transformer.parameter_sizes(shape)
    tables = {name: size for name, size in sizes.items() if name.startswith("embeddings.")}
    counts = TokenCounts.of([(tokens // 2, tokens - tokens // 2)] * (pairs_per_gpu * gpus))
    return Workload(
        name="transformer_base",
        layers=transformer_layers(shape, counts),
        matrices=matrices_among({name: size for name, size in sizes.items() if name not in tables}),
        tables=sum(prod(size) for size in tables.values()),
        slots=gpus,
        objects=counts.target,
        unit="target tokens",
        number_format="float32" if precision == "float32" else "half",
        optimiser_numbers=3,
        activation_bytes=transformer_activations(shape, counts) / gpus,
    )


def resnet_workload(run: dict[str, Any], input_rate: float = IMAGES_PER_CORE_S) -> Workload:
    gpus = run["hosts"] * run["gpus_per_host"]
    shape, pictures = resnet.PRESETS["resnet18"], run["images_per_gpu"] * gpus
    return Workload(
        name="resnet18",
        layers=image_layers(shape, pictures),
        matrices=matrices_among(image_models.parameter_sizes(shape)),
        tables=0,
        slots=gpus,
        objects=pictures,
        unit="pictures",
        number_format="half",
        optimiser_numbers=2,
        activation_bytes=0.0,
        input_core_s=pictures / input_rate,
    )


def run_cluster(run: dict[str, Any], gpus: int | None = None) -> Cluster:
    """The cluster of a run; where the file does not know its line, neither do we."""
    if "instance" in run:
        return parse_cluster(f"{run['hosts']}x{run['instance']}")
    rate = f", {run['link_mbit']}mbit" if run.get("link_mbit") else ""
    hosts, per_host = (run["hosts"], run["gpus_per_host"]) if gpus is None else (-(-gpus // 8), min(gpus, 8))
    return parse_cluster(f"{hosts}x({per_host}x{run['gpu']}{rate})")


def compare(document: dict[str, Any]) -> list[Row]:
    """Every published figure beside ours."""
    rows: list[Row] = []
    for run in document["runs"]:
        if "speedup" in run:
            rows += _scaling_rows(document, run)
        elif run["model"] == "transformer_base":
            rows += _transformer_rows(document, run)
        else:
            rows.append(_resnet_row(run))
    return rows


def _transformer_rows(document: dict[str, Any], run: dict[str, Any]) -> list[Row]:
    gpus, uses = run["hosts"] * run["gpus_per_host"], tuple(run["use"])
    workload = transformer_workload(document, run["pairs_per_gpu"], gpus, run["precision"])
    prediction = predict(workload, run_cluster(run))
    rows = [Row(run["id"], "seconds a step", run["seconds_per_step"], prediction.seconds, uses)]
    if "measured_received_mb_per_step" in run:
        size = prediction.bytes_per_step / 1e6
        measured = run["measured_received_mb_per_step"]
        rows.append(
            Row(run["id"], "MB received a step", measured, Estimate(size, 0.92 * size, 1.08 * size), uses)
        )
    return rows


def _resnet_row(run: dict[str, Any]) -> Row:
    """The whole run: its steps, and the validation that each epoch ends with."""
    prediction = predict(resnet_workload(run), run_cluster(run))
    steps = run["epochs"] * run["batches_per_epoch"]
    pictures = VALIDATION_PICTURES * run["epochs"] / run["hosts"]
    validation = pictures / IMAGES_PER_CORE_S / run_cluster(run).cores

    def whole(seconds: float) -> float:
        return float(steps * seconds + validation)

    p = prediction.seconds
    return Row(
        run["id"],
        "seconds",
        run["seconds"],
        Estimate(whole(p.expected), whole(p.low), whole(p.high)),
        tuple(run["use"]),
    )


def _scaling_rows(document: dict[str, Any], run: dict[str, Any]) -> list[Row]:
    """How much faster N GPUs are than one: each luck is compared with itself."""
    rows = []
    for gpus, published in zip(run["gpus"], run["speedup"], strict=True):
        workload = transformer_workload(document, run["pairs_per_gpu"], gpus, run["precision"])
        cluster = run_cluster(run, gpus)
        algorithm = best_algorithm(workload, cluster, "all_reduce", None)
        lucks = scenarios(cluster, workload.number_format, None)
        good, expected, bad = (
            step_cost(workload, cluster.alone(), "all_reduce", "ring", luck=luck).seconds
            / step_cost(workload, cluster, "all_reduce", algorithm, luck=luck).seconds
            for luck in lucks
        )
        # Computing that is slower hides more communication: the worst case is a fast device on a slow line.
        slow_line = replace(lucks[0], line=lucks[2].line, imbalance=0.1)
        worst = (
            step_cost(workload, cluster.alone(), "all_reduce", "ring", luck=slow_line).seconds
            / step_cost(workload, cluster, "all_reduce", algorithm, luck=slow_line).seconds
        )
        speedups = (good, expected, bad, worst)
        estimate = Estimate(expected, min(speedups), max(float(gpus), *speedups))
        rows.append(Row(run["id"], f"speed-up on {gpus} GPUs", published, estimate, tuple(run["use"])))
    return rows


def fitted_efficiency(document: dict[str, Any], run: dict[str, Any]) -> float:
    """The share of the GPU's peak with which the model gives just the published step time."""
    gpus = run["hosts"] * run["gpus_per_host"]
    workload = transformer_workload(document, run["pairs_per_gpu"], gpus, run["precision"])
    kind, low, high = f"gpu {workload.number_format}", 0.01, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        with mock.patch.dict(EFFICIENCY, {kind: middle}):
            is_slow = predict(workload, run_cluster(run)).seconds.expected > run["seconds_per_step"]
        low, high = (middle, high) if is_slow else (low, middle)
    return (low + high) / 2
