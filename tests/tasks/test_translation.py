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


@pytest.mark.parametrize("shard", ["train-0.source.tokens", "train-0.target.tokens"])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(toy_recipe: Path, shard: str) -> None:
    recipe = load_translation_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    np.memmap(prepared.folder / shard, np.uint16, "r+")[:] |= 1 << 15
    task = TranslationTask(recipe, open_prepared(prepared.folder), CPU)
    with pytest.raises(DataError, match=f"damaged.* pieces; delete {prepared.folder} and prepare again"):
        task.load(task.slots(1)[0])
