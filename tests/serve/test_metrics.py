"""What `/metrics` shows: as Prometheus' own reader sees it, and bounded whatever strangers send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from echelon.serve.app import build_app
from echelon.serve.audit import Handled
from echelon.serve.limits import Limits
from echelon.serve.metrics import Metrics
from echelon.serve.state import ServerState


def samples_of(metrics: Metrics) -> list[Sample]:
    return [
        sample for family in text_string_to_metric_families(metrics.render()) for sample in family.samples
    ]


def value_of(metrics: Metrics, name: str, **labels: str) -> float:
    (value,) = (
        sample.value for sample in samples_of(metrics) if (sample.name, sample.labels) == (name, labels)
    )
    return value


@pytest.mark.parametrize("requests_per_second", [1e9, 1e-9])
def test_made_up_methods_and_paths_share_one_series(requests_per_second: float) -> None:
    """Answered or refused: the second server takes one request and refuses the others."""
    no_model: Any = SimpleNamespace(task="translation")
    limits = Limits(requests_per_second=requests_per_second, burst=1)
    state = ServerState(no_model, "toy", "float32", limits)
    client = TestClient(build_app(state))
    for number in range(300):
        client.request(f"MADE{number}", f"/made/up/{number}")
        client.request(f"MADE{number}", "/health")
    client.get("/health")
    counted = [
        sample.labels for sample in samples_of(state.metrics) if sample.name == "echelon_requests_total"
    ]
    assert len(counted) < 10
    assert {labels["method"] for labels in counted} == {"GET", "other"}
    assert {labels["path"] for labels in counted} <= {"/health", "other"}
    assert state.metrics.num_requests == 601


def test_metrics_keep_their_names() -> None:
    metrics = Metrics()
    metrics.count_request(Handled("POST", "/x", "::1", "/v1/translate", "shop", 200, seconds=0.3))
    metrics.wait_seconds.observe(0.005)
    metrics.compute_seconds.observe(0.2)
    metrics.batch_lines.observe(2)
    metrics.queue_lines.set_function(lambda: 7)
    request = {"method": "POST", "path": "/v1/translate", "status": "200", "token": "shop"}
    assert value_of(metrics, "echelon_requests_total", **request) == 1
    assert value_of(metrics, "echelon_request_seconds_sum") == 0.3
    assert value_of(metrics, "echelon_wait_seconds_bucket", le="0.005") == 1
    assert value_of(metrics, "echelon_compute_seconds_count") == 1
    assert value_of(metrics, "echelon_batch_lines_bucket", le="1.0") == 0
    assert value_of(metrics, "echelon_batch_lines_bucket", le="2.0") == 1
    assert value_of(metrics, "echelon_queue_lines") == 7


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.count_request(Handled("GET", "/health", "::1"))
    assert (one.num_requests, other.num_requests) == (1, 0)
