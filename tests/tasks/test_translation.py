"""The translation task: what it makes of prepared data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.data.prepared import Prepared, open_prepared
from echelon.errors import DataError
from echelon.recipe.loading import load_translation_recipe
from echelon.tasks.translation import TranslationTask

CPU = torch.device("cpu")


def toy_task(toy_recipe: Path, *settings: str) -> TranslationTask:
    recipe = load_translation_recipe(toy_recipe, settings)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    return TranslationTask(recipe, prepared, CPU)


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_two_passes_are_trained_and_one_is_scored(toy_recipe: Path, kernels: str) -> None:
    settings = ("model.dropout=0.3", f"train.kernels={kernels}")
    once, twice = toy_task(toy_recipe, *settings), toy_task(toy_recipe, *settings, "train.r_drop=5")
    torch.manual_seed(1)
    model = once.build_model()
    batch = once.load(once.slots(1)[0])

    def losses(task: TranslationTask) -> tuple[float, float]:
        torch.manual_seed(2)
        smoothed, nll = task.loss(model, batch)
        return smoothed.item(), nll.item()

    model.train()
    apart, together = losses(once), losses(twice)
    model.eval()

    assert losses(once) == losses(twice)
    assert together[1] == pytest.approx(apart[1], rel=0.1)  # a mean of two passes, not their sum
    assert together[0] > apart[0]  # their divergence is added
    assert twice.step_flops(1) == 2 * once.step_flops(1)


@pytest.mark.parametrize("shard", ["train-0.source.tokens", "train-0.target.tokens"])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(toy_recipe: Path, shard: str) -> None:
    recipe = load_translation_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    np.memmap(prepared.folder / shard, np.uint16, "r+")[:] |= 1 << 15
    task = TranslationTask(recipe, open_prepared(prepared.folder), CPU)
    with pytest.raises(DataError, match=f"damaged.* pieces; delete {prepared.folder} and prepare again"):
        task.load(task.slots(1)[0])
