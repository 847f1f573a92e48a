"""Google Cloud's Vertex AI: training as a custom job of up to four pools of machines. Pure functions.

Every machine of a job is a host of the group: launch/site.py reads from the environment which one it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from echelon.cloud.cluster_spec import ImageName, Word
from echelon.cloud.prices import PriceList, price_list

Accelerator = Literal[
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_L4",
    "NVIDIA_TESLA_A100",
    "NVIDIA_A100_80GB",
    "NVIDIA_H100_80GB",
]
POOLS = ("chief", "workers", "parameter_servers", "evaluator")
"""In the order in which Vertex AI wants them."""


class Pool(BaseModel):
    """Machines of one kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    """E.g. n1-standard-16."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    accelerator: Accelerator | None = None
    accelerators: Annotated[int, Field(ge=1, le=16)] = 1
    """On each machine, if there is an accelerator."""
    disk_gb: Annotated[int, Field(ge=100, le=64000)] = 100


class VertexSpec(BaseModel):
    """The spec of a job on Vertex AI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Word
    provider: Literal["gcp"] = "gcp"
    project: str
    region: Word = "us-central1"
    image: ImageName
    """With Echelon in it; see docs/cloud.md."""
    bucket: str
    """A gs:// address for data, recipes and checkpoints."""
    hours: Annotated[float, Field(gt=0, le=24 * 7)] = 1.0
    """After this time the job is cancelled by Vertex AI itself."""
    spot: bool = False
    service_account: str | None = None
    chief: Pool
    workers: Pool | None = None
    parameter_servers: Pool | None = None
    evaluator: Pool | None = None

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, bucket: str) -> str:
        if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_./-]+)?", bucket):
            raise ValueError(
                f"{bucket} names no bucket; write it as gs://bucket or gs://bucket/FOLDER, in lower case"
            )
        return bucket.rstrip("/")

    @field_validator("chief")
    @classmethod
    def _check_chief(cls, chief: Pool) -> Pool:
        if chief.count != 1:
            raise ValueError("there is exactly one chief; more machines go into [workers]")
        return chief

    def pools(self) -> list[Pool | None]:
        return [getattr(self, name) for name in POOLS]


def render_job(spec: VertexSpec, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """The body of projects.locations.customJobs.create."""
    pools = spec.pools()
    while pools[-1] is None:
        pools.pop()
    scheduling = {"timeout": f"{round(spec.hours * 3600)}s", "restartJobOnWorkerRestart": True}
    if spec.spot:
        scheduling["strategy"] = "SPOT"
    return {
        "displayName": spec.name,
        "jobSpec": {
            "workerPoolSpecs": [_render_pool(spec, pool, overrides) if pool else {} for pool in pools],
            "scheduling": scheduling,
            "baseOutputDirectory": {"outputUriPrefix": f"{spec.bucket}/runs/{spec.name}"},
            **({"serviceAccount": spec.service_account} if spec.service_account else {}),
        },
        "labels": {"echelon": spec.name},
    }


def recipe_address(spec: VertexSpec) -> str:
    """Where the job finds its recipe."""
    return f"{spec.bucket}/recipes/{spec.name}.toml"


def _render_pool(spec: VertexSpec, pool: Pool, overrides: tuple[str, ...]) -> dict[str, Any]:
    accelerator = (
        {"acceleratorType": pool.accelerator, "acceleratorCount": pool.accelerators}
        if pool.accelerator
        else {}
    )
    settings = [f"checkpoint.mirror={spec.bucket}/runs/{spec.name}", *overrides]
    command = ["echelon", "train", recipe_address(spec), "--run", f"/tmp/runs/{spec.name}"]
    return {
        "machineSpec": {"machineType": pool.machine, **accelerator},
        "replicaCount": str(pool.count),
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": pool.disk_gb},
        "containerSpec": {
            "imageUri": spec.image,
            "command": command,
            "args": [word for setting in settings for word in ("--set", setting)],
        },
    }


_GPU_NAMES = {"NVIDIA_TESLA_T4": "T4", "NVIDIA_TESLA_P100": "P100", "NVIDIA_TESLA_V100": "V100"}


def hourly(spec: VertexSpec) -> float | None:
    """US dollars an hour by our list; None if a machine is not on it."""
    prices = price_list("gcp")
    costs = [_pool_hourly(pool, prices) for pool in spec.pools() if pool]
    factor = prices.regions.get(spec.region)
    if factor is None or None in costs:
        return None
    return sum(filter(None, costs)) * factor * (prices.spot_share if spec.spot else 1.0)


def _pool_hourly(pool: Pool, prices: PriceList) -> float | None:
    facts = prices.machines.get(pool.machine)
    if facts is None:
        return None
    if facts.gpus or pool.accelerator is None:  # newer machines come with their GPUs
        return pool.count * facts.hourly
    gpu = prices.gpus.get(_GPU_NAMES.get(pool.accelerator, ""))
    return None if gpu is None else pool.count * (facts.hourly + gpu * pool.accelerators)
