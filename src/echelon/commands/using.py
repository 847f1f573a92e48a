"""`evaluate` and `translate`: what a trained run is good for. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

import torch

from echelon.comm.group import Group
from echelon.data.cleaning import normalise
from echelon.data.tokeniser import Tokeniser
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.tasks import build_task
from echelon.tasks.task import Split
from echelon.tasks.translation import build_transformer
from echelon.tasks.translator import Translator, recipe_search
from echelon.train.evaluate import save_scores, score_split, score_summary
from echelon.train.precision import Precision
from echelon.train.weights import choose_weights, load_weights
from echelon.train.worker import choose_device

_LINES_AT_A_TIME = 512


def evaluate(
    run: RunFolder, *, checkpoint: str | None, split: Split, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Score one checkpoint on a split; keeps scores and outputs in the run folder; the keys of `evaluate --json`."""
    recipe, device = load_recipe(run.require().recipe, overrides), choose_device()
    task = build_task(recipe, run, device)
    model = task.build_model().to(device)
    weights = choose_weights(run, checkpoint or recipe.evaluate.final)
    load_weights(model, weights)
    precision = Precision(recipe.train.precision, device)
    scores = score_split(task, model, Group(0, 1), split, precision, final=True)
    summary = score_summary(scores, weights, split)
    save_scores(run, scores, summary)
    return {**summary, "outputs": str(run.outputs_file(split))}


class RunTranslator:
    """A run's model, ready to translate lines of text."""

    def __init__(self, run: RunFolder, checkpoint: str | None, overrides: Sequence[str] = ()) -> None:
        recipe, device = load_recipe(run.require().recipe, overrides), choose_device()
        tokeniser = Tokeniser.load(run.tokeniser)
        model = build_transformer(recipe, tokeniser.size).to(device).eval()
        load_weights(model, choose_weights(run, checkpoint or recipe.evaluate.final))
        self._recipe: Recipe = recipe
        self._precision = Precision(recipe.train.precision, device)
        self._translator = Translator(model, tokeniser, recipe_search(recipe, final=True), device)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """One translation a line, in order."""
        clean = [normalise(line, self._recipe.data.clean.unicode) for line in lines]
        with torch.inference_mode(), self._precision.autocast():
            return [translation.text for translation in self._translator.translate(clean)]

    def translate_stream(self, lines: TextIO) -> Iterator[str]:
        """Translations of a stream as it comes: line by line from a terminal, in batches otherwise."""
        at_a_time = 1 if lines.isatty() else _LINES_AT_A_TIME
        while batch := [line.rstrip("\n") for line in islice(lines, at_a_time)]:
            yield from self.translate(batch)
