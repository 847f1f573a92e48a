"""The declaration of a task of the user's own. Its code is imported only for what needs it: preparing and training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.data.exclusive_folder import exclusive, publish
from echelon.data.prepare import prepared_folder
from echelon.data.progress import ReportProgress
from echelon.declarations.declaration import TaskDeclaration
from echelon.errors import DataError, Problem, UserError
from echelon.explain.training_set import TrainingSetSize
from echelon.recipe.checks import division_problems
from echelon.recipe.own_code import digest_sources, own_paths, read_sources
from echelon.recipe.own_recipe import OwnRecipe
from echelon.recipe.tasks import StepSize, own_scores
from echelon.runfolder import RunFolder, read_json, to_json

if TYPE_CHECKING:
    import torch

    from echelon.tasks.own import OwnTraining

_SPLITS = ("train", "valid", "test")
_CODE = "code"
"""A copy of the user's sources, which hosts get with the data."""


@dataclass(frozen=True)
class OwnManifest:
    """What can be said of a task without its code."""

    examples: dict[str, int]
    """How many each split has."""
    parameters: dict[str, list[int]]
    """The size of every parameter of the model, by its name."""


@dataclass(frozen=True)
class OwnPrepared:
    """Prepared data: nothing but what is known of them, as the task itself reads its examples."""

    folder: Path
    key: str
    manifest: OwnManifest


class OwnDeclaration(TaskDeclaration[OwnRecipe, OwnPrepared]):
    """Implements `TaskDeclaration` for the class that an import path names."""

    recipe = OwnRecipe
    unit = targets = "targets"

    def __init__(self, path: str) -> None:
        self._path = path
        self.scores = own_scores(path)

    def batch(self, recipe: OwnRecipe) -> StepSize:
        return StepSize("train.batch_examples", recipe.train.batch_examples, "examples")

    def find_problems(self, recipe: OwnRecipe) -> Iterator[Problem]:
        yield from division_problems("train.batch_examples", recipe.train.batch_examples, recipe.train.slots)
        known = {*recipe.evaluate.scores, "loss"}
        named = {"checkpoint.best": recipe.checkpoint.best} | {
            f"early_stop.{number}.metric": rule.metric for number, rule in enumerate(recipe.early_stop)
        }
        for metric in recipe.evaluate.less_is_better:
            if metric not in known:
                named["evaluate.less_is_better"] = metric
        for key, metric in named.items():
            if metric not in known:
                yield Problem(key, f"{metric!r} is not among evaluate.scores, {', '.join(sorted(known))}")

    def prepare(
        self, recipe: OwnRecipe, recipe_folder: Path, cache: Path, progress: ReportProgress
    ) -> OwnPrepared:
        from echelon.tasks.own import open_own, require_examples

        own = open_own(recipe)
        require_examples(own, "train", recipe.task)
        sources = read_sources(own_paths(recipe))
        examples = {split: own.examples(split) for split in _SPLITS}
        counts = {split: len(found) for split, found in examples.items() if found is not None}
        manifest = OwnManifest(counts, _sizes_of(recipe))
        told = to_json([recipe.task, recipe.data_settings, asdict(manifest), digest_sources(sources)])
        folder = prepared_folder(cache, f"own-{hashlib.sha256(told.encode()).hexdigest()[:16]}")
        with exclusive(folder) as unfinished:
            if not folder.exists():
                for name, content in sources.items():
                    (unfinished / _CODE / name).parent.mkdir(parents=True, exist_ok=True)
                    (unfinished / _CODE / name).write_bytes(content)
                files = [{"name": f"{_CODE}/{name}", "bytes": len(sources[name])} for name in sorted(sources)]
                document = {**asdict(manifest), "key": folder.name, "files": files}
                (unfinished / "manifest.json").write_text(json.dumps(document))
                publish(unfinished, folder)
        return self.open_data(folder)

    def open_data(self, folder: Path) -> OwnPrepared:
        try:
            document = read_json(folder / "manifest.json")
            manifest = OwnManifest(document["examples"], document["parameters"])
            assert all(isinstance(count, int) for count in manifest.examples.values())
            return OwnPrepared(folder, folder.name, manifest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise DataError(f"{folder}: holds no data of a task of one's own: {error}") from error

    def steps_per_epoch(self, recipe: OwnRecipe, prepared: OwnPrepared) -> float:
        return prepared.manifest.examples["train"] / recipe.train.batch_examples

    def format_prepared(self, prepared: OwnPrepared) -> str:
        counts = ", ".join(f"{count:,} to {split}" for split, count in prepared.manifest.examples.items())
        return f"examples: {counts}"

    def measure_training_set(self, manifest: OwnManifest) -> TrainingSetSize:
        return TrainingSetSize(
            "unknown", f"{manifest.examples['train']:,} examples, which the task itself reads."
        )

    def parameter_sizes(
        self, recipe: OwnRecipe, prepared: OwnPrepared | None
    ) -> Mapping[str, tuple[int, ...]]:
        """From the prepared data, so that no report needs the code; without them, from the model itself."""
        sizes = prepared.manifest.parameters if prepared is not None else _sizes_of(recipe)
        return {name: tuple(size) for name, size in sizes.items()}

    def host_environment(self, recipe: OwnRecipe, data: Path) -> dict[str, str]:
        """The copy of the sources comes first on hosts. It is looked at, as a resumed run's folder says where it is."""
        code, sources = data / _CODE, read_sources(own_paths(recipe))
        if _read_copy(code) != sources:
            raise UserError(
                f"{code}: is not the code that Python finds here under {', '.join(own_paths(recipe))}; begin a new run"
            )
        # Without compiled modules beside the sources: those could not be compared.
        own = {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**super().host_environment(recipe, data), **own}

    def build_task(self, recipe: OwnRecipe, run: RunFolder, device: torch.device) -> OwnTraining:
        from echelon.tasks.own import OwnTraining

        return OwnTraining(recipe, device)


def _read_copy(code: Path) -> dict[str, bytes] | None:
    """The files in a copy of sources; None if it has anything but plain files: Python would import those, too."""
    copied = {}
    for path in code.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            return None
        if path.is_file():
            copied[str(path.relative_to(code))] = path.read_bytes()
    return None if code.is_symlink() else copied


def _sizes_of(recipe: OwnRecipe) -> dict[str, list[int]]:
    """The sizes of the parameters; the model takes no memory for them."""
    import torch

    from echelon.tasks.own import build_own_model, open_own

    with torch.device("meta"):
        model = build_own_model(recipe, open_own(recipe))
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}
