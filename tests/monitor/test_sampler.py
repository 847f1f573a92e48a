"""Samples of a host: real ones of this machine, and GPUs as NVIDIA's library shows them."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from echelon.monitor.records import RecordWriter, read_records
from echelon.monitor.sampler import Gpus, HostSampler, SamplerThread


def fake_nvml(**missing: Any) -> types.SimpleNamespace:
    """As much of NVIDIA's management library as is used, with two GPUs; `missing` replaces some of it."""

    class NVMLError(Exception):
        pass

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=4 * 2**30, total=16 * 2**30),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=97 + handle, memory=30),
        nvmlDeviceGetPowerUsage=lambda handle: 250_000,
        nvmlDeviceGetTemperature=lambda handle, kind: 71,
        **missing,
    )


def test_a_sample_has_everything_and_names_the_clusters_card() -> None:
    sample = HostSampler("here", "lo", Gpus()).sample()
    assert sample["host"] == "here"
    assert sample["card"] == "lo"
    assert 0 <= sample["processors"] <= 1
    assert 0 < sample["memory"] <= sample["memory_total"]
    assert sample["disk_read"] >= 0
    assert all(both[0] >= 0 and both[1] >= 0 for both in sample["cards"].values())


def test_gpus_are_sampled_as_their_library_shows_them() -> None:
    gpus = Gpus()
    gpus._nvml = fake_nvml()
    assert gpus.sample()[1] == {"busy": 0.98, "memory": 0.25, "watts": 250.0, "celsius": 71}


def test_a_gpu_that_does_not_know_its_power_is_sampled_all_the_same() -> None:
    gpus = Gpus()
    nvml = fake_nvml()

    def refuse(handle: int) -> int:
        raise nvml.NVMLError("not supported")

    nvml.nvmlDeviceGetPowerUsage = refuse
    gpus._nvml = nvml
    assert gpus.sample()[0] == {"busy": 0.97, "memory": 0.25}


def test_samples_become_records_until_the_end(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "worker-0.jsonl")
    thread = SamplerThread(HostSampler("here", "lo"), writer, every_s=0.02)
    while len(read_records(tmp_path / "worker-0.jsonl")) < 2:
        pass
    thread.stop()
    writer.close()
    records = read_records(tmp_path / "worker-0.jsonl")
    assert {record["kind"] for record in records} == {"host"}
    assert all(record["seconds"] == pytest.approx(0.02, abs=5) for record in records)
