"""`cloud render` and `convert`: what other providers and systems are to be told, without telling them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml

from echelon.cloud.ai_platform import convert
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import render_task
from echelon.cloud.spec import ClusterSpec, load_spec
from echelon.cloud.vertex import VertexSpec, render_job
from echelon.errors import UserError
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import dump_table

Target = Literal["vertex", "ibmcloud", "skypilot"]


def render_for(target: Target, path: Path, recipe: Path | None) -> str:
    """What `cloud render` prints."""
    if recipe is not None:
        load_recipe(recipe, [])  # its problems, before anybody is told
    match target:
        case "vertex":
            return json.dumps(render_job(load_spec(path, VertexSpec)), indent=2) + "\n"
        case "ibmcloud":
            return render_commands(load_spec(path, IbmSpec))
        case "skypilot":
            return render_task(load_spec(path, ClusterSpec), str(recipe or "recipe.toml"))


def convert_ai_platform(path: Path) -> tuple[str, list[str]]:
    """A file for `cloud render vertex` from an AI Platform configuration, and what to know about it."""
    spec, notes = convert(_read_yaml(path))
    head: dict[str, Any] = {
        "name": path.stem.replace("_", "-").lower(),
        "provider": "gcp",
        "project": "YOUR-PROJECT",
        "image": "YOUR-REGION-docker.pkg.dev/YOUR-PROJECT/echelon/echelon",
        "bucket": "gs://YOUR-BUCKET",
    }
    return dump_table({**head, **spec}), notes


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not YAML: {error}") from None
