"""`cloud render` and `convert`: what other providers and systems are to be told, without telling them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import Sources, TaskSpec, render_task
from echelon.cloud.spec import load_spec, parse_spec
from echelon.cloud.vertex import VertexSpec, render_job
from echelon.errors import UserError
from echelon.launch.wheel import pack_wheel
from echelon.migrate.ai_platform import convert
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import dump_table
from echelon.runfolder import write_atomically
from echelon.store import address_of

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
            return _render_skypilot(load_spec(path, TaskSpec), recipe)


def _render_skypilot(spec: TaskSpec, recipe: Path | None) -> str:
    """A task for SkyPilot; what it copies to the machines is named as it is here, where SkyPilot runs."""
    if recipe is None:
        raise UserError("a task for SkyPilot needs --recipe, what to train")
    wheel = None if spec.container else keep_wheel()
    address = address_of(recipe)
    if address:
        return render_task(spec, Sources(address, wheel=wheel))
    folder = recipe.absolute().parent
    _require_beside(load_recipe(recipe, []).model_dump().get("data", {}), folder)
    return render_task(spec, Sources(recipe.name, folder, wheel))


def keep_wheel() -> Path:
    """Echelon as it runs here, as a file that stays; in the user's own folder, as it is code."""
    wheel = pack_wheel()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "echelon" / "wheels" / wheel.sha256[:12] / wheel.name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, wheel.content)
    return path


def _require_beside(data: Any, folder: Path) -> None:
    """UserError if a recipe's data are on this machine, but not below its own folder, which is all that is copied."""
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


@dataclass(frozen=True)
class GoogleAccount:
    """What an AI Platform configuration does not say about the job that it becomes."""

    project: str | None = None
    bucket: str | None = None
    image: str | None = None


def convert_ai_platform(path: Path, account: GoogleAccount) -> tuple[str, list[str]]:
    """A file for `cloud render vertex` from an AI Platform configuration, and what to know about it."""
    document = _read_yaml(path)
    spec, notes = convert(document)
    project = account.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    bucket = account.bucket or _job_dir(document)
    missing = {"--project NAME": project, "--bucket gs://NAME": bucket}
    if not project or not bucket:
        flags = " and ".join(flag for flag, value in missing.items() if not value)
        raise UserError(f"{path}: does not say where the job runs and keeps its files; add {flags}")
    region = spec.get("region", VertexSpec.model_fields["region"].default)
    image = account.image or f"{region}-docker.pkg.dev/{project}/echelon/echelon"
    if account.image is None:
        notes = [*notes, f"image is {image}; --image gives another (docs/cloud.md says how to build it)"]
    head = {"name": path.stem.replace("_", "-").lower(), "provider": "gcp", "project": project}
    table = {**head, "image": image, "bucket": bucket, **spec}
    parse_spec(table, VertexSpec, str(path))
    return dump_table(table), notes


def _job_dir(document: Any) -> str | None:
    given = document.get("trainingInput", document) if isinstance(document, dict) else {}
    job_dir = str(given.get("jobDir", "")).rstrip("/")
    return job_dir if job_dir.startswith("gs://") else None


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not YAML: {error}") from None
