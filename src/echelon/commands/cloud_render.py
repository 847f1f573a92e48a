"""`cloud render`: the files and commands for other providers, written but not sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from echelon.cloud.cluster_spec import load_spec
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import TaskFiles, TaskSpec, render_task
from echelon.cloud.vertex import VertexSpec, render_job
from echelon.errors import UserError
from echelon.launch.wheel import pack_wheel
from echelon.recipe.loading import load_recipe
from echelon.runfolder import write_atomically
from echelon.store import address_of

Target = Literal["vertex", "ibmcloud", "skypilot"]


def render_for(target: Target, path: Path, recipe: Path | None) -> str:
    """What `cloud render` prints."""
    if recipe is not None:
        load_recipe(recipe, [])  # its problems, before anything is printed
    match target:
        case "vertex":
            return json.dumps(render_job(load_spec(path, VertexSpec)), indent=2) + "\n"
        case "ibmcloud":
            return render_commands(load_spec(path, IbmSpec))
        case "skypilot":
            return _render_skypilot(load_spec(path, TaskSpec), recipe)


def _render_skypilot(spec: TaskSpec, recipe: Path | None) -> str:
    """A task for SkyPilot, naming the files to copy as they are named on this machine, which runs SkyPilot."""
    if recipe is None:
        raise UserError("a task for SkyPilot needs --recipe, what to train")
    wheel = None if spec.container else keep_wheel()
    address = address_of(recipe)
    if address:
        return render_task(spec, TaskFiles(address, wheel=wheel))
    folder = recipe.absolute().parent
    _require_beside(load_recipe(recipe, []).model_dump().get("data", {}), folder)
    return render_task(spec, TaskFiles(recipe.name, folder, wheel))


def keep_wheel() -> Path:
    """Echelon as it runs here, as a wheel in the user's cache."""
    wheel = pack_wheel()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "echelon" / "wheels" / wheel.sha256[:12] / wheel.name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, wheel.content)
    return path


def _require_beside(data: Any, folder: Path) -> None:
    """UserError if a recipe's data are on this machine but outside its folder, because only that folder is copied."""
    if isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            _require_beside(each, folder)
    elif isinstance(data, str | Path) and _is_outside(folder / data, folder):
        raise UserError(
            f"{folder / data}: only the recipe's folder is copied to the machines; put it there, or copy prepared data "
            "to a bucket with `echelon prepare --to` and name them with data.prepared"
        )


def _is_outside(path: Path, folder: Path) -> bool:
    return path.exists() and not path.resolve().is_relative_to(folder.resolve())
