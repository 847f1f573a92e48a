"""The translation task: what it makes of prepared data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

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


def losses(task: TranslationTask, model: nn.Module) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.stack(task.loss(model, task.load(task.slots(1)[0]))).detach()


def test_two_passes_are_trained_and_one_is_scored(toy_recipe: Path) -> None:
    once = toy_task(toy_recipe, "model.dropout=0.3")
    fast, plain = (
        toy_task(toy_recipe, "model.dropout=0.3", "train.r_drop=5", f"train.kernels={kernels}")
        for kernels in ("auto", "off")
    )
    torch.manual_seed(1)
    model = once.build_model().train()
    (smoothed, nll), (smoothed_of_one, nll_of_one) = losses(fast, model), losses(once, model)

    assert nll.item() == pytest.approx(nll_of_one.item(), rel=0.1)  # a mean of two passes, not their sum
    assert smoothed > smoothed_of_one  # their divergence is added
    torch.testing.assert_close(losses(plain, model), losses(fast, model), rtol=1e-5, atol=1e-5)
    model.eval()
    assert losses(fast, model).tolist() == losses(once, model).tolist()
    assert fast.step_flops(1) == 2 * once.step_flops(1)


@pytest.mark.parametrize("shard", ["train-0.source.tokens", "train-0.target.tokens"])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(toy_recipe: Path, shard: str) -> None:
    recipe = load_translation_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    np.memmap(prepared.folder / shard, np.uint16, "r+")[:] |= 1 << 15
    task = TranslationTask(recipe, open_prepared(prepared.folder), CPU)
    with pytest.raises(DataError, match=f"damaged.* pieces; delete {prepared.folder} and prepare again"):
        task.load(task.slots(1)[0])
