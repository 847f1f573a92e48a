"""Clusters from the words of --on, and errors that say what to write."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.explain import hardware
from echelon.explain.clusters import parse_cluster


def test_a_machine_of_the_price_list() -> None:
    cluster = parse_cluster("4xg4dn.2xlarge")
    assert (cluster.hosts, cluster.per_host, cluster.device.name, cluster.cores) == (4, 1, "T4", 8)
    assert cluster.line_bytes_per_s == 10e9 / 8
    assert cluster.hourly == 0.752


def test_a_machine_without_a_gpu_computes_with_its_cores() -> None:
    cluster = parse_cluster("2xc7i.4xlarge")
    assert (cluster.per_host, cluster.device.is_gpu) == (1, False)
    assert cluster.device.name == "8 cores"


def test_hosts_described_by_their_parts() -> None:
    cluster = parse_cluster("2x(2xV100, 1gbit, $3.5/h)")
    assert (cluster.hosts, cluster.per_host, cluster.device.name) == (2, 2, "V100")
    assert cluster.line_bytes_per_s == 1e9 / 8
    assert cluster.hourly == 3.5
    assert cluster.line_range is None


def test_a_line_that_is_not_said_is_uncertain() -> None:
    cluster = parse_cluster("2x(1xT4)")
    assert cluster.line_range is not None
    assert cluster.line_range[0] < cluster.line_bytes_per_s < cluster.line_range[1]


def test_cores_may_be_parts_of_one() -> None:
    cluster = parse_cluster("3x(0.5xcpu, 100mbit)")
    assert (cluster.hosts, cluster.per_host, cluster.cores) == (3, 1, 0.5)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("4xg4dn.2xlage", "did you mean g4dn.2xlarge"),
        ("2x(2xV1OO, 1gbit)", "there is no GPU 'V1OO'"),
        ("2x(2xV100, fast)", "after the devices come a line rate"),
        ("2x(2xV100, 5tbit)", "write it as 100mbit or 1gbit"),
        ("0xg4dn.xlarge", "write it as"),
        ("2x(1.5xV100, 1gbit)", "no whole number"),
        ("", "write it as"),
        ("something", "use 4xg4dn.2xlarge"),
    ],
)
def test_what_means_no_cluster_says_what_to_write(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says.replace("(", r"\(")):
        parse_cluster(spec)


def test_a_list_of_ones_own_adds_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        '[gpus]\n"X9" = { float32 = 1, half = 2, memory_gib = 3, memory_gb_s = 4, inner_gb_s = 5 }\n'
    )
    monkeypatch.setenv("ECHELON_HARDWARE", str(own))
    device = parse_cluster("2x(1xx9, 1gbit)").device
    assert (device.name, device.float32_flops, device.memory_bytes) == ("X9", 1e12, 3 * 2**30)
    assert hardware.find_gpu("T4") is not None
    own.write_text("[gpus]\nX9 = 5\n")
    hardware._load.cache_clear()
    with pytest.raises(UserError, match="is not a list of hardware"):
        hardware.catalogue()
    hardware._load.cache_clear()


def test_alone_a_worker_has_nobody_to_talk_to() -> None:
    alone = parse_cluster("2x(2xV100, 1gbit)").alone()
    assert alone.workers == 1
    assert math.isfinite(alone.fabric().line.bytes_per_s)
