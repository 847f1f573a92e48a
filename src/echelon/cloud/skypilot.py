"""SkyPilot's task file, for every provider that it supports: pure functions.

SkyPilot ends machines when they are idle, and with them the only copy of what is on them. So the task stops training in
time for `hours` and `budget`, and has every checkpoint in a bucket.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Field, field_validator, model_validator

from echelon.cloud.cluster_spec import ClusterSpec, RentedSpec, Word
from echelon.cloud.prices import HOURS_PER_MONTH, Provider, machine, price, price_list
from echelon.errors import UserError
from echelon.launch.yaml import to_yaml

SkyProvider = Literal[
    "aws",
    "azure",
    "cudo",
    "do",
    "fluidstack",
    "gcp",
    "hyperbolic",
    "ibm",
    "kubernetes",
    "lambda",
    "mithril",
    "nebius",
    "oci",
    "paperspace",
    "primeintellect",
    "runpod",
    "scp",
    "seeweb",
    "shadeform",
    "slurm",
    "ssh",
    "vast",
    "verda",
    "vsphere",
    "yotta",
]
_IDLE_MINUTES = 5
_SAVING_S = 300
_RESERVED_S = 1200
"""Of the hours, for starting before the clock is set, saving, and being idle before SkyPilot ends the machines."""
_SHORTEST_S = 3600
_EXTRAS = {"s3": "aws", "gs": "gcp"}

_DEADLINE = """\
# The hours begin when the machines have started, once.
[ -e ~/echelon-deadline ] || echo "$(($(date +%s) + {seconds}))" > ~/echelon-deadline
"""
_INSTALL = """\
python3 -m venv ~/echelon-env
timeout 30m ~/echelon-env/bin/pip install {requirement}
"""
_RUN = """\
export ECHELON_CACHE=~/echelon-cache PATH=~/echelon-env/bin:$PATH
left=$(($(cat ~/echelon-deadline) - $(date +%s)))
if [ "$left" -le 0 ]; then
  echo "the hours of {name} are over; sky down it" >&2
  exit 1
fi
workers=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
[ "$workers" -gt 0 ] || workers=1
# Told to stop, it saves; every checkpoint is in the bucket before it ends, and before SkyPilot ends the machines.
timeout --signal=TERM --kill-after={saving} "$left" echelon train {recipe} --run ~/runs/{name} \\
  --set checkpoint.mirror={mirror} \\
  --nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" \\
  --master "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):29500" --workers "$workers"
"""


class TaskSpec(RentedSpec):
    """The part of cluster.toml that SkyPilot supports. Other keys are refused."""

    provider: SkyProvider = "aws"
    type: Word | None = None
    """The provider's name for the machine."""
    gpus: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(:[0-9]+)?$")] | None = None
    """In place of `type`: SkyPilot's name for the GPUs of a machine, as in A100:8."""
    region: Word | None = None
    """None lets SkyPilot choose."""
    bucket: str
    """An s3:// or gs:// address that checkpoints are copied to before the machines end."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_lost(cls, document: Any) -> Any:
        lost = sorted((set(ClusterSpec.model_fields) - set(cls.model_fields)) & set(document))
        if lost:
            raise ValueError(f"SkyPilot decides about {', '.join(lost)} itself; remove the key")
        if "bucket" not in document:
            raise ValueError(
                "bucket is needed: SkyPilot ends the machines after the run, and the model with them unless it is "
                "in a bucket, as in s3://mine/runs"
            )
        return document

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, bucket: str) -> str:
        if not re.fullmatch(r"(s3|gs)://[a-z0-9._-]{3,63}(/[A-Za-z0-9_./-]+)?", bucket):
            raise ValueError("write it as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER")
        return bucket.rstrip("/")

    @model_validator(mode="after")
    def _check_machine(self) -> TaskSpec:
        if (self.type is None) == (self.gpus is None):
            raise ValueError("name the machine by type, or by gpus: one of them")
        return self


@dataclass(frozen=True)
class TaskFiles:
    """Local files that the machines need."""

    recipe: str
    """Its name in `folder`, or its address."""
    folder: Path | None = None
    """Copied to the machines; None for a recipe at an address."""
    wheel: Path | None = None
    """Echelon as it runs here; None if the container has it."""


def render_task(spec: TaskSpec, sources: TaskFiles) -> str:
    """A task that trains a recipe on `count` machines, each started as docs/launchers.md describes."""
    setup = _DEADLINE.format(seconds=limit_s(spec) - _RESERVED_S)
    there = f"~/{sources.wheel.name}" if sources.wheel else ""
    if there:
        extra = _EXTRAS[spec.bucket.partition(":")[0]]
        setup += _INSTALL.format(requirement=f"~/{shlex.quote(f'{there[2:]}[{extra}]')}")
    run = _RUN.format(
        name=spec.name,
        recipe=shlex.quote(sources.recipe),
        mirror=shlex.quote(f"{spec.bucket}/{spec.name}"),
        saving=_SAVING_S,
    )
    task: dict[str, Any] = {
        "name": spec.name,
        "num_nodes": spec.count,
        "resources": _render_resources(spec),
        **({"workdir": str(sources.folder)} if sources.folder else {}),
        **({"file_mounts": {there: str(sources.wheel)}} if there else {}),
        "setup": setup,
        "run": run,
    }
    return to_yaml([task])


def _render_resources(spec: TaskSpec) -> dict[str, Any]:
    return {
        "infra": f"{spec.provider}/{spec.region}" if spec.region else spec.provider,
        **({"instance_type": spec.type} if spec.type else {"accelerators": spec.gpus}),
        "use_spot": spec.spot,
        "disk_size": spec.disk_gb,
        "autostop": {"idle_minutes": _IDLE_MINUTES, "down": True},
        **({"image_id": f"docker:{spec.container}"} if spec.container else {}),
        **({"labels": spec.tags} if spec.tags else {}),
    }


def limit_s(spec: TaskSpec) -> int:
    """Seconds after which the machines must end; UserError if the budget cannot be kept, or is too small."""
    hours = spec.hours if spec.budget is None else min(spec.hours, spec.budget / _hourly(spec))
    if hours * 3600 < _SHORTEST_S:
        raise UserError(
            f"{hours * 60:.0f} minutes are too few: SkyPilot's machines need some to start and to end; give at least "
            "an hour, or more budget"
        )
    return int(hours * 3600)


def _hourly(spec: TaskSpec) -> float:
    """US dollars, at the on-demand price: SkyPilot has no price limit for spot machines."""
    if spec.provider not in get_args(Provider) or spec.type is None or spec.region is None:
        raise UserError(
            "budget: only AWS's and Google's prices are known here, by type and region; name both, or limit `hours`"
        )
    provider = cast(Provider, spec.provider)
    other = price_list(provider).other
    each = price(provider, spec.type, False, spec.region) + machine(provider, spec.type).credits_hourly
    return spec.count * (each + spec.disk_gb * other.disk_gb_month / HOURS_PER_MONTH + other.address_hour)
