"""What a task declares: from its recipe to the verb that uses its models. A method without a body here is needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from echelon.errors import Problem, UserError
from echelon.recipe.own_code import (
    ALLOWED_VARIABLE,
    digest_sources,
    own_paths,
    read_sources,
    require_allowed,
)
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import Score, StepSize, Use

if TYPE_CHECKING:
    import torch

    from echelon.commands.evaluate import Scorable
    from echelon.commands.given_sets import GivenSet, SetOptions
    from echelon.data.batch_plan import AnyPrepared
    from echelon.data.progress import ReportProgress
    from echelon.explain.description import Description
    from echelon.explain.significance import Difference
    from echelon.explain.training_set import TrainingSetSize
    from echelon.explain.workload import Workload
    from echelon.export.export_folder import ExportOptions
    from echelon.runfolder import RunFolder
    from echelon.serve.model_server import Served, ServeOptions
    from echelon.serve.state import ServerState
    from echelon.tasks.task import Task

R = TypeVar("R", bound=Recipe)
P = TypeVar("P", bound="AnyPrepared")


class TaskDeclaration(ABC, Generic[R, P]):
    """A task: recipes of type R, and prepared data of type P."""

    recipe: type[R]
    scores: tuple[Score, ...]
    """What models are scored by: the one that people ask for first, and others. Their keys are those of `Scores`."""
    score_title: str = "Score on the validation set"
    """The title of the chart."""
    unit: str
    """What steps are counted in, for names of measurements, as in the worker's `Task`: tokens, images."""
    targets: str
    """The unit as it is shown: target tokens, images."""
    use: Use = Use("evaluate", "only evaluates", "evaluate")
    """The verb that uses its models."""

    # Its recipe

    @abstractmethod
    def batch(self, recipe: R) -> StepSize:
        """The size of a step."""

    def find_problems(self, recipe: R) -> Iterable[Problem]:
        """What is wrong between keys of the task's own tables."""
        return ()

    def refuse_idle(self, recipe: R, overrides: Sequence[str]) -> None:
        """UserError if an override changes nothing."""

    def width(self, recipe: R) -> int | None:
        """The width that the schedule "transformer" scales by; None for models without one."""
        return None

    def slot_sizes(self, recipe: R, prepared: P) -> tuple[int, int]:
        """The smallest and the largest slot to try for `batch = "auto"`, if the task's recipes have that."""
        raise NotImplementedError

    def with_slot_size(self, recipe: R, size: int) -> R:
        """The recipe with slots of that size, for `batch = "auto"`."""
        raise NotImplementedError

    # Its data

    @abstractmethod
    def prepare(self, recipe: R, recipe_folder: Path, cache: Path, progress: ReportProgress) -> P:
        """Find the data prepared, or make them: once, and found again by what they were made from."""

    @abstractmethod
    def open_data(self, folder: Path) -> P:
        """Open prepared data; DataError if they are missing or damaged."""

    @abstractmethod
    def steps_per_epoch(self, recipe: R, prepared: P) -> float: ...

    def find_data(self, recipe: R, recipe_folder: Path, cache: Path) -> P | None:
        """The data if they are prepared already."""
        return None

    def fetched_from(self, recipe: R) -> str | None:
        """The address that prepared data are fetched from, if they are not to be made."""
        return None

    def data_notes(self, recipe: R, prepared: P) -> list[str]:
        """What is allowed in the data but seldom meant."""
        return []

    def format_prepared(self, prepared: P) -> str:
        """What preparation made, for people."""
        return f"prepared data: {prepared.folder}"

    def put_data(self, prepared: P, address: str) -> str:
        """Copy prepared data to an address; return where a recipe finds them."""
        raise UserError(f"--to {address}: is for parallel text")

    def write_model_files(self, run: RunFolder, prepared: P) -> None:
        """Put what a model needs beside its weights into the run's folder."""

    # Its shapes

    @abstractmethod
    def parameter_sizes(self, recipe: R, prepared: P | None) -> Mapping[str, tuple[int, ...]]:
        """The size of every parameter of the model by its name, computed without torch."""

    def is_larger_than(self, recipe: R, num_tensors: int, num_numbers: int) -> bool:
        """Whether the recipe's model, whatever its data, has more tensors or more numbers than these. Asked of recipes
        from anywhere before a model is built, so it must not take the memory that the model would."""
        sizes = self.parameter_sizes(recipe, None)
        return len(sizes) > num_tensors or sum(math.prod(size) for size in sizes.values()) > num_numbers

    def describe(self, recipe: R, prepared: P | None) -> Description:
        """What the recipe means, for `describe`."""
        from echelon.explain.plain import describe_plainly

        return describe_plainly(self, recipe, prepared)

    def format_description(self, description: Any) -> str:
        """Format a description as text."""
        from echelon.explain.plain import format_plainly

        return format_plainly(description)

    def workload(self, recipe: R, prepared: P | None, steps: int | None) -> Workload:
        """The work of a step, for `plan` and `report`."""
        from echelon.explain.plain import plain_workload

        return plain_workload(self, recipe, prepared, steps)

    def step_flops(self, recipe: R, prepared: P | None) -> int:
        """FLOPs of a step, forward and backward; every parameter once for each example unless the task knows better."""
        sizes = self.parameter_sizes(recipe, prepared)
        return 6 * self.batch(recipe).size * sum(math.prod(size) for size in sizes.values())

    # Training

    @abstractmethod
    def build_task(self, recipe: R, run: RunFolder, device: torch.device) -> Task:
        """What a worker trains: slots, model, loss and scoring, on the data that were prepared for the run."""

    def provenance(self, recipe: R) -> dict[str, Any]:
        """What the provenance of a run says of the user's own code that the recipe names."""
        paths = own_paths(recipe)
        if not paths:
            return {}
        sources = read_sources(paths)
        return {"own_code": {"paths": paths, "files": sorted(sources), "sha256": digest_sources(sources)}}

    def host_environment(self, recipe: R, data: Path) -> dict[str, str]:
        """What the workers on other hosts need in their environment; `data` is the folder of the prepared data."""
        paths = own_paths(recipe)
        require_allowed(paths)
        return {ALLOWED_VARIABLE: " ".join(paths)} if paths else {}

    # Its report

    def measure_training_set(self, manifest: Any) -> TrainingSetSize:
        """How big the training set is, from the manifest of the prepared data."""
        from echelon.explain.training_set import TrainingSetSize

        return TrainingSetSize("unknown", "The task does not say how big its data are.")

    def compare_outputs(
        self, recipe: R, first: Sequence[str], second: Sequence[str], references: Sequence[str]
    ) -> list[Difference]:
        """Whether the outputs of two models for the same examples differ in their scores; none if the task has no test
        for that."""
        return []

    # The use of its models

    def refuse_sets(self, options: SetOptions) -> None:
        """UserError if `evaluate` is given what the task does not score."""
        if options.has_text or options.images:
            raise UserError(f"a model that {self.use.does} is scored on the run's own sets only")

    def open_sets(
        self, run: RunFolder, recipe: R, sets: Sequence[GivenSet], folder: Path, device: torch.device
    ) -> Scorable:
        """The sets given to `evaluate`, and the model to score; files that must be written first go into `folder`."""
        raise NotImplementedError

    def export(self, run: RunFolder, recipe: R, options: ExportOptions) -> dict[str, Any]:
        """Write the model for use without the run, and check it; the keys of `export --json`."""
        raise UserError(f"{run.path}: models of the task {recipe.task} cannot be exported yet")

    def load_served(self, options: ServeOptions, place: Path) -> Served:
        """The model, for `serve`; a model that must be converted first goes into `place`."""
        raise UserError(f"{options.model}: models of this task cannot be served yet")

    def add_routes(self, app: Any, model: Any, state: ServerState) -> None:
        """What a server with the model answers."""
        raise NotImplementedError
