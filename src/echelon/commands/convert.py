"""`convert ai-platform`: an old AI Platform configuration as a file for `cloud render vertex`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from echelon.cloud.cluster_spec import parse_spec
from echelon.cloud.vertex import VertexSpec
from echelon.commands.google_account import GoogleAccount
from echelon.errors import UserError
from echelon.migrate.ai_platform import convert
from echelon.recipe.tasks import find_task
from echelon.recipe.toml import dump_table
from echelon.runfolder import RUNS, read_file


def convert_model(path: Path, to: Path | None) -> dict[str, Any]:
    """A run from a model of transformers, timm or torchvision."""
    from echelon.pretrained.conversion import convert_pretrained

    converted = convert_pretrained(path, to or RUNS / path.resolve().name.removesuffix(".safetensors"))
    run, recipe = converted.run, converted.recipe
    return {
        "run": str(run.path),
        "task": recipe.task,
        "model": recipe.model.model_dump(exclude_none=True),
        "numbers": converted.num_numbers,
    }


def format_model(result: dict[str, Any]) -> str:
    """Format the result as text."""
    task: Any = find_task(result["task"])
    return (
        f"{result['run']}: a run with {result['numbers']:,} numbers, which {task.use.does}; "
        f"`echelon {task.use.verb} {result['run']}` uses it. To train it further, name your data in a recipe with the "
        f"same [model] table, and set train.init_from to this run"
    )


def convert_ai_platform(path: Path, account: GoogleAccount) -> tuple[str, list[str]]:
    """A file for `cloud render vertex` from an AI Platform configuration, with notes."""
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
        text = read_file(path)
        _refuse_aliases(text)
        return yaml.safe_load(text)
    except RecursionError:
        raise UserError(f"{path}: is not YAML that can be read: nested too deeply") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError of malformed dates and numbers
        raise UserError(f"{path}: is not YAML: {error}") from None


def _refuse_aliases(text: bytes) -> None:
    """A few nested aliases expand to more than any memory holds."""
    for event in yaml.parse(text):  # reads events, and builds nothing
        if isinstance(event, yaml.AliasEvent):
            line = f"line {event.start_mark.line + 1}" if event.start_mark else "a line"
            raise yaml.YAMLError(f"{line} has an alias (*name); write the value itself there")
