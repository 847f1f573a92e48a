"""The translation task: what it makes of prepared data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from echelon.commands.prepare import prepare_data
from echelon.data.prepared import Prepared, open_prepared
from echelon.data.tokeniser import Tokeniser
from echelon.errors import DataError
from echelon.inference.decoding import Decoding
from echelon.inference.model_folder import text_rules
from echelon.inference.torch_engine import TorchEngine
from echelon.inference.translator import Translator
from echelon.models.sequences import Sequences
from echelon.recipe.loading import load_translation_recipe
from echelon.tasks.task import Scores
from echelon.tasks.translation import TranslationTask
from echelon.train.precision import Precision

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


def score(task: TranslationTask, model: nn.Module) -> Scores:
    scoring = task.scoring("valid", final=True)
    with torch.inference_mode():
        return scoring.combine([scoring.share(model, rank=0, size=1, on_batch=lambda _: None)])


def with_long_line(toy_recipe: Path, words: int) -> None:
    """Put a line of so many words at the end of the validation set."""
    for side, word in (("en", "dog"), ("de", "hund")):
        file = toy_recipe.parent / f"valid.{side}"
        file.write_text(file.read_text() + " ".join([word] * words) + "\n")


def test_memory_of_scoring_does_not_depend_on_the_longest_line(
    toy_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of 20,000 words is left out of the loss, and translated in parts of at most data.max_tokens."""
    alone = toy_task(toy_recipe)
    with_long_line(toy_recipe, 20_000)
    task = toy_task(toy_recipe)
    torch.manual_seed(1)
    model = task.build_model().eval()
    longest = []
    init = Sequences.__post_init__

    def note(sequences: Sequences) -> None:
        init(sequences)
        longest.append(sequences.longest)

    expected = score(alone, model)
    monkeypatch.setattr(Sequences, "__post_init__", note)
    scores = score(task, model)
    assert max(longest) <= max(load_translation_recipe(toy_recipe).data.max_tokens, 64)
    assert scores.metrics["loss"] == pytest.approx(expected.metrics["loss"])
    assert scores.details["left_out_of_loss"] == {"pairs": 1, "above_tokens": 1024}
    assert scores.outputs[:-1] == expected.outputs
    assert "left_out_of_loss" not in expected.details


def test_long_lines_are_scored_as_translate_translates_them(toy_recipe: Path) -> None:
    with_long_line(toy_recipe, 90)
    task = toy_task(toy_recipe, "evaluate.beam=2")
    torch.manual_seed(1)
    model = task.build_model().eval()
    recipe = load_translation_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    engine = TorchEngine(model, Precision("float32", CPU), CPU)
    tokeniser = Tokeniser.load(prepared.tokeniser_path)
    translator = Translator(engine, tokeniser, text_rules(recipe), Decoding(beam=2))
    texts = [str(one) for one in translator.translate(prepared.valid.source_lines())]
    assert score(task, model).outputs == texts


@pytest.mark.parametrize("shard", ["train-0.source.tokens", "train-0.target.tokens"])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(toy_recipe: Path, shard: str) -> None:
    recipe = load_translation_recipe(toy_recipe)
    prepared = prepare_data(recipe, toy_recipe.parent, Console(quiet=True))
    assert isinstance(prepared, Prepared)
    np.memmap(prepared.folder / shard, np.uint16, "r+")[:] |= 1 << 15
    task = TranslationTask(recipe, open_prepared(prepared.folder), CPU)
    with pytest.raises(DataError, match=f"damaged.* pieces; delete {prepared.folder} and prepare again"):
        task.load(task.slots(1)[0])
