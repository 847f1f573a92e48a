"""What a recipe means before anything runs: every number against its definition."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.prepare import prepare_data
from echelon.data.batch_plan import plan_batches
from echelon.data.prepared import Prepared
from echelon.explain.checkpoints import checkpoint_parts, format_parts
from echelon.explain.description import format_description
from echelon.explain.text_description import ASSUMED_LENGTH, describe_text, format_text
from echelon.explain.units import show_megabytes
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schedule import rate_by_step
from tests.sample_corpus import write_corpus
from tests.sample_recipe import sample_recipe

WMT = load_translation_recipe(Path(__file__).parents[2] / "recipes" / "wmt16-en-de-base.toml")


def test_transformer_base_has_its_known_sizes() -> None:
    description = describe_text(WMT, None)
    assert description.parameters == 60_880_896
    assert sum(description.parameters_by_layer.values()) == description.parameters
    assert description.parameters_by_layer["embeddings"] == 32768 * 512
    assert description.gradient_bytes == 4 * 60_880_896
    assert description.checkpoint_bytes == 3 * 4 * 60_880_896
    assert not description.is_prepared
    assert (description.training_pairs, description.steps_per_epoch, description.epochs) == (None, None, None)


def test_flops_follow_from_the_assumed_sentences() -> None:
    """6 FLOPs a parameter and token, for the matrices each token meets, and a little for attention."""
    description = describe_text(WMT, None)
    sentences = 32_768 // ASSUMED_LENGTH
    tokens = sentences * ASSUMED_LENGTH
    assert description.target_tokens_per_step == tokens
    matrices = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048) + 512 * 32768
    attention = 6 * 3 * (4 + 2 + 4) * 512 * ASSUMED_LENGTH**2 * sentences
    assert description.flops_per_step == 6 * tokens * matrices + attention


@pytest.mark.parametrize(
    ("optimiser", "numbers"),
    [({"kind": "adamw"}, 3), ({"kind": "sgd"}, 2), ({"kind": "sgd", "momentum": 0.0}, 1)],
)
def test_the_checkpoint_holds_what_the_optimiser_keeps(optimiser: dict[str, object], numbers: int) -> None:
    description = describe_text(sample_recipe(optimiser=optimiser), None)
    assert description.checkpoint_bytes == 4 * numbers * description.parameters


def test_a_shared_out_optimiser_is_told() -> None:
    whole, shared = (
        describe_text(sample_recipe(f"train.shard={shard}"), None) for shard in ("none", "optimiser")
    )
    assert shared.optimiser_bytes == whole.optimiser_bytes == 4 * 2 * whole.parameters
    line = f"  optimiser        {show_megabytes(shared.optimiser_bytes)}, shared out over the workers"
    assert line in format_description(shared).splitlines()
    assert "shared out" not in format_description(whole)


@pytest.mark.parametrize(
    ("overrides", "workers", "numbers"),
    [
        ((), 4, 3),
        (("train.average_decay=0.999",), 1, 4),
        (("train.exchange=compressed",), 4, 3),
        (("train.exchange=compressed", "exchange.wire=int8"), 4, 3 + 4),
        (("train.exchange=compressed", "exchange.wire=int8"), 1, 3),
        (("train.exchange=local", "exchange.replicas=3"), 2, 1 + 3 * 2 + 1),
    ],
)
def test_a_checkpoint_has_all_its_parts(overrides: tuple[str, ...], workers: int, numbers: int) -> None:
    parts = checkpoint_parts(sample_recipe(*overrides), 1000, ())
    assert sum(part.bytes(workers) for part in parts) == 4 * numbers * 1000


def test_a_low_rank_checkpoint_has_factors_of_the_matrices_that_gain() -> None:
    parts = checkpoint_parts(sample_recipe("train.exchange=low_rank"), 1000, [(300, 200), (8, 8)])
    assert [part.bytes(2) / 4 for part in parts] == [1000, 2000, 2 * 1000, 16 * 200]
    assert "each of several workers adds" in format_parts(parts)


def test_learning_rates_are_shown_at_the_start_the_peak_and_the_end() -> None:
    description = describe_text(WMT, None)
    assert list(description.learning_rates) == [1, 8000, 75_000, 150_000, 225_000, 300_000]
    rate = rate_by_step(WMT, 300_000)
    assert description.learning_rates == {step: rate(step) for step in description.learning_rates}


def test_a_recipe_in_epochs_has_no_steps_before_its_data_is_prepared() -> None:
    description = describe_text(sample_recipe("train.steps=", "train.epochs=3"), None)
    assert (description.steps, description.epochs, description.learning_rates) == (None, 3.0, {})
    assert "length           steps not known before the data is prepared, 3 epochs\n" in format_text(
        description
    )


def test_prepared_data_gives_real_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    path = write_corpus(tmp_path / "corpus")
    recipe = load_translation_recipe(path, ["train.steps=", "train.epochs=4"])
    prepared = prepare_data(recipe, path.parent, Console(file=io.StringIO()))
    assert isinstance(prepared, Prepared)
    description = describe_text(recipe, prepared)
    plan = plan_batches(recipe, prepared)
    assert description.is_prepared
    assert description.training_pairs == 180
    assert description.vocabulary == prepared.manifest.vocabulary
    assert description.steps_per_epoch == plan.steps_per_epoch
    assert description.steps is not None
    assert 4 * plan.steps_per_epoch <= description.steps < 4 * plan.steps_per_epoch + 1
    assert 0 < description.target_tokens_per_step <= recipe.train.batch_tokens
    assert f"length           {description.steps} steps, 4 epochs of 180 pairs\n" in format_text(description)
    assert "prepared data)" in format_text(description)
    in_steps = describe_text(load_translation_recipe(path), prepared)
    assert in_steps.epochs == pytest.approx(100 / plan.steps_per_epoch)


def test_a_batch_that_training_will_find_is_not_shown_as_known() -> None:
    description = describe_text(sample_recipe("train.batch=auto"), None)
    assert description.is_batch_auto
    assert (
        '  step             batch = "auto" is found when training begins; counted here with at most 1,024 tokens in 4 '
        "slots (about 1,000 target tokens; "
    ) in format_text(description)


def test_the_description_in_words() -> None:
    recipe = sample_recipe("train.steps=4000", "schedule.warmup_steps=500")
    assert (
        format_text(describe_text(recipe, None))
        == """\
sample: translation
  model            4+4 layers, width 128, inner width 256, 4 heads, pre-norm
  vocabulary       200 pieces at most
  parameters       1,345,024
    embeddings             25,600
    encoder               528,128
    decoder               791,296
  gradient         5.4 MB in float32: what each worker exchanges per step
  checkpoint       about 16.1 MB: weights, Adam's two averages
  step             at most 1,024 tokens in 4 slots (about 1,000 target tokens; data not prepared yet; \
sentences of 25 tokens assumed)
  FLOPs a step     8.4e+09
  length           4,000 steps
  learning rate    500 steps of linear warm-up, then 0.001
    step 1         2.000e-06
    step 500       1.000e-03
    step 1,000     1.000e-03
    step 2,000     1.000e-03
    step 3,000     1.000e-03
    step 4,000     1.000e-03"""
    )
