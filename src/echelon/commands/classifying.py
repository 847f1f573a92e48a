"""`classify`: picture files to classes with probabilities. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from echelon.errors import RunError, UserError
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.classification import build_network
from echelon.tasks.classifier import Classifier, read_rules
from echelon.train.precision import Precision
from echelon.train.weights import choose_weights, load_weights
from echelon.train.worker import choose_device


class RunClassifier:
    """A run's model, ready to classify picture files."""

    def __init__(self, run: RunFolder, checkpoint: str | None, overrides: Sequence[str] = ()) -> None:
        recipe, device = load_recipe(run.require().recipe, overrides), choose_device()
        if not isinstance(recipe, ClassificationRecipe):
            raise RunError(f"{run.path}: translates and does not classify pictures; use `echelon translate`")
        rules = read_rules(run)
        model = build_network(recipe, len(rules.classes), rules.pixels).to(device).eval()
        load_weights(model, choose_weights(run, checkpoint or recipe.evaluate.final))
        self._precision = Precision(recipe.train.precision, device)
        self._classifier = Classifier(model, rules, device, recipe.evaluate.flip)

    def classify(self, paths: Sequence[Path], top: int = 5) -> list[dict[str, Any]]:
        """Of each file its likeliest classes, the likeliest first; UserError names the file that is no picture."""
        contents = [_read(path) for path in paths]
        results = []
        for path, content in zip(paths, contents, strict=True):
            try:
                with torch.inference_mode(), self._precision.autocast():
                    guesses = self._classifier.classify([content], top)[0]
            except (OSError, ValueError) as error:
                raise UserError(f"{path}: is not a picture that can be read ({error})") from None
            classes = [{"class": guess.name, "probability": guess.probability} for guess in guesses]
            results.append({"file": str(path), "classes": classes})
        return results


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
