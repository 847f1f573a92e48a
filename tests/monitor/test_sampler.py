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


@pytest.mark.parametrize(
    ("call", "lacks"),
    [
        ("nvmlDeviceGetUtilizationRates", {"busy"}),  # as a part of a GPU (MIG) does
        ("nvmlDeviceGetMemoryInfo", {"memory"}),
        ("nvmlDeviceGetPowerUsage", {"watts"}),
        ("nvmlDeviceGetTemperature", {"celsius"}),
        ("nvmlDeviceGetHandleByIndex", {"busy", "memory", "watts", "celsius"}),
    ],
)
def test_what_a_gpu_refuses_to_tell_is_left_out_of_its_sample(call: str, lacks: set[str]) -> None:
    gpus, nvml = Gpus(), fake_nvml()

    def refuse(*arguments: Any) -> None:
        raise nvml.NVMLError("not supported")

    setattr(nvml, call, refuse)
    gpus._nvml = nvml
    assert [set(gpu) for gpu in gpus.sample()] == 2 * [{"busy", "memory", "watts", "celsius"} - lacks]


def test_disks_that_nothing_counts_are_not_said_to_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NotImplementedError("/proc/diskstats is not there")

    monkeypatch.setattr("psutil.disk_io_counters", refuse)
    sample = HostSampler("here", "lo", Gpus()).sample()
    assert (sample["disk_read"], sample["disk_written"]) == (None, None)


def test_a_sampler_that_fails_ends_no_training(tmp_path: Path) -> None:
    sampler = HostSampler("here", "lo")

    def fail() -> dict[str, Any]:
        raise RuntimeError("the driver has gone")

    sampler.sample = fail  # type: ignore[method-assign]
    writer = RecordWriter(tmp_path / "worker-0.jsonl")
    thread = SamplerThread(sampler, writer, every_s=60)
    thread.stop()
    writer.write("end")
    writer.close()
    assert [record["kind"] for record in read_records(tmp_path / "worker-0.jsonl")] == ["end"]


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
