"""A task of one's own, declared: is a sentence English or German? No torch here; language_training.py has that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from echelon.data.demo_corpus import generate
from echelon.data.exclusive_folder import exclusive, publish
from echelon.data.prepare import prepared_folder
from echelon.data.progress import ReportProgress
from echelon.declarations.declaration import TaskDeclaration
from echelon.errors import DataError
from echelon.recipe.schema import Adam, CheckpointSettings, Optimiser, Recipe, Train
from echelon.recipe.section import Evaluation, Section
from echelon.recipe.tasks import Score, StepSize
from echelon.runfolder import RunFolder, read_json

if TYPE_CHECKING:
    import torch
    from language_training import LanguageTask


class LanguageData(Section):
    """Sentences of the embedded corpus."""

    sentences: PositiveInt = 500
    """Of each language, to train on; a tenth as many are held out to validate, and to test."""


class LanguageModel(Section):
    """A table with a row for each trigram of letters, whose mean decides."""

    rows: PositiveInt = 1024
    """Rows of the table; trigrams that hash to the same one share it."""


class LanguageTrain(Train):
    """The length of training and what a step is."""

    batch_sentences: PositiveInt = 32
    """Sentences in a step."""


class LanguageCheckpoint(CheckpointSettings):
    """When the run's state is saved, and what is kept."""

    best: Literal["accuracy", "loss"] = "accuracy"  # type: ignore[assignment]
    """Validation metric that decides which checkpoint is the best."""


class LanguageRecipe(Recipe):
    """A recipe that tells languages apart."""

    task: Literal["language"]
    data: LanguageData = LanguageData()
    model: LanguageModel = LanguageModel()
    train: LanguageTrain
    optimiser: Optimiser = Adam()
    evaluate: Evaluation = Evaluation()
    checkpoint: LanguageCheckpoint = LanguageCheckpoint()


@dataclass(frozen=True)
class Manifest:
    """How many sentences each split has."""

    train: int
    valid: int
    test: int


@dataclass(frozen=True)
class Sentences:
    """Prepared data: a file for each split, a line for each sentence."""

    folder: Path
    key: str
    manifest: Manifest

    def read(self, split: str) -> Iterator[tuple[int, str]]:
        """0 and an English sentence, or 1 and a German one."""
        for line in (self.folder / f"{split}.txt").read_text().splitlines():
            language, _, sentence = line.partition("\t")
            yield int(language), sentence


class Language(TaskDeclaration[LanguageRecipe, Sentences]):
    """Implements `TaskDeclaration` with what has no default."""

    recipe = LanguageRecipe
    scores = (Score("accuracy", "accuracy", "%"),)
    unit = targets = "sentences"

    def batch(self, recipe: LanguageRecipe) -> StepSize:
        return StepSize("train.batch_sentences", recipe.train.batch_sentences, self.unit)

    def prepare(
        self, recipe: LanguageRecipe, recipe_folder: Path, cache: Path, progress: ReportProgress
    ) -> Sentences:
        count = recipe.data.sentences
        folder = prepared_folder(cache, f"language-{count}")
        with exclusive(folder) as unfinished:
            if not folder.exists():
                corpus = generate(train=count, valid=max(1, count // 10), test=max(1, count // 10))
                splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
                for split, pairs in splits.items():
                    lines = [f"0\t{pair.source}\n1\t{pair.target}\n" for pair in pairs]
                    (unfinished / f"{split}.txt").write_text("".join(lines))
                manifest = Manifest(**{split: 2 * len(pairs) for split, pairs in splits.items()})
                (unfinished / "manifest.json").write_text(json.dumps(asdict(manifest)))
                publish(unfinished, folder)
        return self.open_data(folder)

    def open_data(self, folder: Path) -> Sentences:
        try:
            return Sentences(folder, folder.name, Manifest(**read_json(folder / "manifest.json")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{folder}: holds no sentences: {error}") from error

    def steps_per_epoch(self, recipe: LanguageRecipe, prepared: Sentences) -> float:
        return prepared.manifest.train / recipe.train.batch_sentences

    def parameter_sizes(
        self, recipe: LanguageRecipe, prepared: Sentences | None
    ) -> dict[str, tuple[int, ...]]:
        return {"table.weight": (recipe.model.rows, 2)}

    def build_task(self, recipe: LanguageRecipe, run: RunFolder, device: torch.device) -> LanguageTask:
        from language_training import LanguageTask

        return LanguageTask(recipe, self.open_data(Path(read_json(run.data)["folder"])), device)


TASK = Language()
