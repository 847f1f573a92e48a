"""The recipe of a task of one's own: what it is made of is named by import paths (docs/own-parts.md)."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt

from echelon.recipe.own_code import ImportPath
from echelon.recipe.schema import (
    LOWER_IS_BETTER,
    AdamW,
    CheckpointSettings,
    EarlyStop,
    ImageMetric,
    Metric,
    Optimiser,
    Recipe,
    Train,
)
from echelon.recipe.section import Evaluation, Section
from echelon.recipe.tasks import note_own_scores

_TAKEN = {"step", "steps", "seconds", "split", "signature", "checkpoint", "time", "kind"}
"""What the record of a scoring says besides its scores."""
_UPWARDS = {*get_args(Metric), *get_args(ImageMetric)} - LOWER_IS_BETTER


def _require_free(name: str) -> str:
    if name in _TAKEN:
        raise ValueError(f"{name!r} is a key that every record of scores has; choose another name")
    return name


def _require_own(name: str) -> str:
    if name in _UPWARDS:
        raise ValueError(
            f"{name!r} is a score of Echelon's own tasks, of which more is better; choose another name"
        )
    return name


ScoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_require_free)]
DownwardScore = Annotated[ScoreName, AfterValidator(_require_own)]


class OwnData(Section):
    """Whatever keys the task has, given to it as they are; a relative path begins where the workers run."""

    model_config = ConfigDict(extra="allow")


class OwnModel(Section):
    """Whatever keys the task has, given to it as they are."""

    model_config = ConfigDict(extra="allow")

    build: ImportPath | None = None
    """A function that makes the network from the other keys of this table, in place of the task's `build_model`."""


class OwnTrain(Train):
    """The length of training on examples of one's own, and what a step of them is."""

    batch_examples: PositiveInt = 32
    """Examples in a step. Must divide evenly into `slots`."""
    loss: ImportPath | None = None
    """A function of model and batch, in place of the task's `loss`."""


class OwnEvaluation(Evaluation):
    """When and how the model is scored."""

    scores: list[ScoreName] = Field(default=["loss"], min_length=1)
    """What `measure` measures, the one that people ask for first in front."""
    less_is_better: list[DownwardScore] = Field(default=[])
    """Those of `scores` of which less is better, such as a mean error. It always is of loss and perplexity."""
    batch: PositiveInt = 32
    """Examples that are scored at once."""
    measure: ImportPath | None = None
    """A function of model and batch, in place of the task's `measure`."""


class OwnCheckpoint(CheckpointSettings):
    """When the state of a training on examples of one's own is saved, and what is kept."""

    best: ScoreName = "loss"  # type: ignore[assignment]
    """Validation metric that decides which checkpoint is the best."""


class OwnEarlyStop(EarlyStop):
    """Stop when a validation metric of one's own no longer improves. With several, all must have stopped improving."""

    metric: ScoreName = "loss"  # type: ignore[assignment]
    """The metric to look at."""


class OwnRecipe(Recipe):
    """A recipe whose task, and perhaps other parts, are the user's own."""

    task: ImportPath
    """A class, made with the tables `data` and `model`; an `echelon.OwnTask`."""
    data: OwnData = OwnData()
    """What it is learnt from."""
    model: OwnModel = OwnModel()
    """The network."""
    train: OwnTrain
    """The length of training and what a step is."""
    optimiser: Optimiser = AdamW()
    """How gradients become updates."""
    evaluate: OwnEvaluation = OwnEvaluation()
    """When and how it is scored."""
    checkpoint: OwnCheckpoint = OwnCheckpoint()
    """When the run's state is saved, and what is kept."""
    early_stop: list[OwnEarlyStop] = Field([])  # type: ignore[assignment]
    """When to stop before the end."""

    def model_post_init(self, _context: Any) -> None:
        """Code that shows the run's scores asks the table of tasks for them, without the code that measures them."""
        note_own_scores(self.task, self.evaluate.scores, self.evaluate.less_is_better)

    @property
    def data_settings(self) -> dict[str, Any]:
        return dict(self.data.model_extra or {})

    @property
    def model_settings(self) -> dict[str, Any]:
        return dict(self.model.model_extra or {})
