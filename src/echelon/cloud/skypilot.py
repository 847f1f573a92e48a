"""SkyPilot's task file, for every provider that it knows: a pure function."""

from __future__ import annotations

import shlex
from typing import Any

from echelon.cloud.prices import machine
from echelon.cloud.spec import ClusterSpec
from echelon.launch.yaml import to_yaml

_RUN = """\
export ECHELON_CACHE=~/echelon-cache
source ~/echelon-env/bin/activate
exec echelon train {recipe} --run ~/runs/{name} --nodes "$SKYPILOT_NUM_NODES" \\
  --node-rank "$SKYPILOT_NODE_RANK" --master "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):29500" --workers {workers}
"""
_SETUP = """\
python3 -m venv ~/echelon-env
~/echelon-env/bin/pip install {requirement}
"""


def render_task(spec: ClusterSpec, recipe: str = "recipe.toml", requirement: str = "./echelon") -> str:
    """A task that trains a recipe on `count` machines, started by hand as docs/launchers.md describes."""
    facts = machine(spec.provider, spec.type)
    resources: dict[str, Any] = {
        "infra": f"{spec.provider}/{spec.region}",
        "instance_type": spec.type,
        "use_spot": spec.spot,
        "disk_size": spec.disk_gb,
        "autostop": {"idle_minutes": 10, "down": True},
        **({"image_id": f"docker:{spec.container}"} if spec.container else {}),
    }
    task: dict[str, Any] = {
        "name": spec.name,
        "num_nodes": spec.count,
        "resources": resources,
        "workdir": ".",
        "setup": _SETUP.format(requirement=shlex.quote(requirement)),
        "run": _RUN.format(recipe=shlex.quote(recipe), name=spec.name, workers=facts.gpus or 1),
    }
    return to_yaml([task])
