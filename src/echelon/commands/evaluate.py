"""`evaluate`: score a trained run on its own sets or any other. Imports torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from echelon.comm.group import Group
from echelon.commands.given_sets import GivenSet, SetOptions
from echelon.commands.results import unscored_note
from echelon.console import SafeConsole, tell
from echelon.data.fingerprints import sha256_of_file
from echelon.data.held_out import encode_set
from echelon.data.images.folder import find_labelled
from echelon.data.images.image_store import Pixels
from echelon.data.tokeniser import Tokeniser
from echelon.errors import DataError, UserError
from echelon.files.checkpoint_layout import default_choice
from echelon.inference.pictures import PictureRules, read_rules
from echelon.models.kernels.selection import choose_kernels
from echelon.monitor.bar import working
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.recipe.tasks import find_task
from echelon.runfolder import RunFolder
from echelon.tasks import build_task
from echelon.tasks.classification import ClassificationScoring, Normaliser, ScoredPictures, build_network
from echelon.tasks.task import Scoring, Split
from echelon.tasks.translation import build_transformer
from echelon.tasks.translation_loss import TranslationLoss
from echelon.tasks.translation_scoring import TranslationScoring
from echelon.train.evaluation import save_scores, score_summary, score_together, trial_name
from echelon.train.precision import Precision
from echelon.train.weights import choose_weights, load_weights, require_size
from echelon.train.worker import choose_device

_SETTABLE = ("evaluate.", "train.precision=")


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `echelon evaluate`."""

    checkpoint: str | None = None
    split: Split | None = None
    """Which of the run's own sets; its test set if neither this nor `sets` says anything."""
    sets: SetOptions = field(default_factory=SetOptions)
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Scorable:
    """A model without weights, and the sets to score it on, by name."""

    model: nn.Module
    scorings: dict[str, Scoring]
    files: dict[str, list[dict[str, str]]]
    """Of each given set, the files and their SHA-256."""


def evaluate(
    run: RunFolder, options: EvaluateOptions, console: Console | None = None
) -> list[dict[str, Any]]:
    """Score one checkpoint; keeps scores and outputs in the run folder by the name of each set. Scores of
    another than the run's final checkpoint, or with other settings, are kept beside (`trial_name`).

    The keys of `evaluate --json`, a dictionary for each set. Progress is shown on the console.
    """
    for override in options.overrides:
        if not override.startswith(_SETTABLE):
            raise UserError(
                f"--set {override}: a run is scored as its own model; only keys of evaluate and train.precision can be "
                "set. --source and --target, --test and --images score other data"
            )
    recipe, device = load_recipe(run.require().recipe, options.overrides), choose_device()
    sets = options.sets.sets(recipe)
    if sets and options.split is not None:
        raise UserError(
            f"--split {options.split} is one of the run's own sets; leave it out to score another"
        )
    if options.checkpoint is None and console is not None and (note := unscored_note(run, recipe)):
        tell(console, note)
    own = default_choice(run.checkpoints, load_recipe(run.recipe).evaluate.final)
    weights = choose_weights(run, options.checkpoint or own)
    is_own = options.checkpoint in (None, own) or choose_weights(run, own).label == weights.label
    other = None if is_own else weights.label
    require_size(recipe, weights)
    with _open(run, recipe, options.split or "test", sets, device) as scorable:
        model = scorable.model.to(device)
        load_weights(model, weights)
        precision, results = Precision(recipe.train.precision, device), []
        for name, scoring in scorable.scorings.items():
            with working(
                console or SafeConsole(quiet=True), f"scoring {name}" if sets else f"scoring the {name} set"
            ) as show:
                scores = score_together(scoring, model, Group(0, 1), precision, show=show)
            assert scores is not None, "nobody stops it"
            summary = score_summary(scores, weights, name)
            summary |= {"files": scorable.files[name]} if name in scorable.files else {}
            summary |= {"settings": list(options.overrides)} if options.overrides else {}
            kept = trial_name(name, other, options.overrides)
            save_scores(run, scores, summary, kept)
            results.append({**summary, **scores.details, "outputs": str(run.outputs_file(kept))})
    return results


@contextmanager
def _open(
    run: RunFolder, recipe: Recipe, split: Split, sets: Sequence[GivenSet], device: torch.device
) -> Iterator[Scorable]:
    """The model and sets to score. Given sets need only the run folder, not the run's data."""
    if not sets:
        task = build_task(recipe, run, device)
        yield Scorable(task.build_model(), {split: task.scoring(split, final=True)}, {})
        return
    declared: ScoreDeclaration = find_task(recipe.task)
    with tempfile.TemporaryDirectory(prefix="echelon-") as folder:
        yield declared.open_sets(run, recipe, sets, Path(folder), device)


class ScoreDeclaration(Protocol):
    """What a task says about scoring sets that are given."""

    def open_sets(
        self, run: RunFolder, recipe: Recipe, sets: Sequence[GivenSet], folder: Path, device: torch.device
    ) -> Scorable:
        """What is to be scored; `folder` is for what has to be written first."""
        ...


def open_texts(
    run: RunFolder, recipe: TranslationRecipe, sets: Sequence[GivenSet], folder: Path, device: torch.device
) -> Scorable:
    """A model that translates, and parallel files."""
    tokeniser = Tokeniser.load(run.tokeniser)
    choice = choose_kernels(recipe.train.kernels, device, recipe.train.precision, recipe.model.activation)
    loss = TranslationLoss(recipe.train, choice, device)
    scorings: dict[str, Scoring] = {}
    for number, given in enumerate(sets):
        form, text = recipe.data.clean.unicode, given.text(recipe)
        store = encode_set(f"set-{number}", text, form, run.tokeniser, folder)
        scorings[given.name] = TranslationScoring(
            recipe, tokeniser, loss, device, store, len(store), final=True
        )
    files = {
        given.name: [{"path": str(file), "sha256": sha256_of_file(file)} for file in given.files]
        for given in sets
    }
    return Scorable(build_transformer(recipe, tokeniser.size), scorings, files)


def open_pictures(
    run: RunFolder, recipe: ClassificationRecipe, sets: Sequence[GivenSet], device: torch.device
) -> Scorable:
    """A classifier, and folders of pictures."""
    rules = read_rules(run)
    normalise = Normaliser(rules.normalisation, device)
    scorings: dict[str, Scoring] = {}
    for given in sets:
        found = find_labelled(given.files[0], rules.classes)
        labels = np.array([label for _, label in found], np.int64)
        pictures = ScoredPictures(given.name, labels, PictureFiles([file for file, _ in found], rules))
        scorings[given.name] = ClassificationScoring(recipe.evaluate, pictures, rules.classes, normalise)
    files = {given.name: [{"path": str(given.files[0])}] for given in sets}
    return Scorable(build_network(recipe, len(rules.classes), rules.pixels), scorings, files)


@dataclass(frozen=True)
class PictureFiles:
    """Picture files as a model sees them, read on demand."""

    files: Sequence[Path]
    rules: PictureRules

    def __call__(self, indices: NDArray[np.int64]) -> Pixels:
        """[N, P, P, 3]; DataError naming all of these files that cannot be read."""
        seen: list[Pixels] = []
        problems: list[str] = []
        for file in (self.files[index] for index in indices.tolist()):
            try:
                seen.append(self.rules.see(file.read_bytes()))
            except (OSError, ValueError) as error:
                problems.append(f"{file} cannot be read as an image: {error}")
        if problems:
            raise DataError("\n".join(problems))
        return np.stack(seen)
