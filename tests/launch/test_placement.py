"""A worker is started with what tells it its place in the group."""

from __future__ import annotations

import os
import sys

import pytest

from echelon.launch.placement import Placement, render_worker
from echelon.runfolder import RunFolder


def test_a_worker_is_started_with_exactly_this(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    spec = render_worker(run, Placement(4, port=23456), 1, 4, ["--benchmark", "30"])
    assert spec.command == [
        sys.executable,
        "-P",
        "-m",
        "echelon.train.worker",
        str(run.path),
        "--benchmark",
        "30",
    ]
    assert spec.environment == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "23456",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
        "ECHELON_HOSTS": "1",
        "ECHELON_GENERATION": "0",
        "ECHELON_FOLDER": "shared",
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
        "MALLOC_TOP_PAD_": "67108864",
        "GOMP_SPINCOUNT": "3000",
    }


def test_a_worker_of_several_hosts_knows_its_place_in_the_whole_group(run: RunFolder) -> None:
    place = Placement(6, 4, "10.0.0.3", 2345, "eth1", generation=7, shares_folder=False)
    environment = render_worker(run, place, 1, 2).environment
    assert (
        environment.items()
        >= {
            "RANK": "5",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.3",
            "MASTER_PORT": "2345",
            "GLOO_SOCKET_IFNAME": "eth1",
            "NCCL_SOCKET_IFNAME": "=eth1",
            "ECHELON_GENERATION": "7",
            "ECHELON_FOLDER": "own",
        }.items()
    )


def test_a_launcher_beside_others_of_its_host_knows_its_place_among_them(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    place = Placement(4, 3, first_local_rank=1, local_size=2, threads=7)
    environment = render_worker(run, place, 0, 1).environment
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    assert [environment[name] for name in names] == ["3", "1", "2", "7"]


def test_threads_are_the_users_choice_or_else_at_least_one(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert render_worker(run, Placement(2), 0, 2).environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert render_worker(run, Placement(10_000), 0, 10_000).environment["OMP_NUM_THREADS"] == "1"
