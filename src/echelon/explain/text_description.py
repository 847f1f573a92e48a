"""What a recipe of translation means before anything runs, computed without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from echelon.data.batch_plan import plan_batches, step_tokens
from echelon.data.prepared import Prepared
from echelon.explain.checkpoints import checkpoint_parts, format_parts, optimiser_bytes
from echelon.explain.description import Description, format_facts, some_rates, steps_of
from echelon.recipe.schedule import formula
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import transformer_shape
from echelon.shapes.transformer import (
    TokenCounts,
    TransformerShape,
    gradient_bytes,
    matrices,
    parameter_count,
    parameters,
    training_flops,
)

ASSUMED_LENGTH = 25
"""Tokens of a sentence, assumed until the data is prepared."""
AUTO_BATCH = 'batch = "auto" is found when training begins; counted here with'


@dataclass(frozen=True)
class TextDescription(Description):
    """Everything `describe --json` prints of translation."""

    vocabulary: int
    model: dict[str, Any]
    tokens_per_step: int
    is_batch_auto: bool
    """Whether training will find `tokens_per_step` out; what is counted here is counted with the recipe's number."""
    target_tokens_per_step: int
    training_pairs: int | None


def describe_text(recipe: TranslationRecipe, prepared: Prepared | None) -> TextDescription:
    """What the recipe means; with prepared data, what it means for that data."""
    shape = recipe_shape(recipe, prepared)
    plan = plan_batches(recipe, prepared) if prepared else None
    tokens = mean_tokens(recipe, prepared)
    per_epoch = plan.steps_per_epoch if plan else None
    steps = steps_of(recipe, per_epoch)
    parts = checkpoint_parts(recipe, parameter_count(shape), matrices(shape))
    return TextDescription(
        name=recipe.name,
        task=recipe.task,
        parameters=parameter_count(shape),
        parameters_by_layer=_by_layer(shape),
        vocabulary=shape.vocabulary,
        model=asdict(shape),
        gradient_bytes=gradient_bytes(shape),
        checkpoint_bytes=round(sum(part.bytes(1) for part in parts)),
        checkpoint_parts=format_parts(parts),
        optimiser_bytes=optimiser_bytes(recipe, parameter_count(shape)),
        shares_optimiser=recipe.train.shard == "optimiser",
        tokens_per_step=recipe.train.batch_tokens,
        is_batch_auto=recipe.train.batch == "auto",
        target_tokens_per_step=tokens.target,
        slots=recipe.train.slots,
        flops_per_step=training_flops(shape, tokens.times(recipe.train.passes)),
        is_prepared=prepared is not None,
        training_pairs=sum(len(store) for store in prepared.train) if prepared else None,
        steps_per_epoch=per_epoch,
        steps=steps,
        epochs=recipe.train.epochs or (steps / per_epoch if steps and per_epoch else None),
        schedule=formula(recipe.schedule, shape.d_model),
        learning_rates=some_rates(recipe, steps),
    )


def format_text(description: TextDescription) -> str:
    """The description as text for people."""
    d, model = description, description.model
    source = (
        "prepared data"
        if d.is_prepared
        else f"data not prepared yet; sentences of {ASSUMED_LENGTH} tokens assumed"
    )
    about = [
        f"  model            {model['encoder_layers']}+{model['decoder_layers']} layers, width {model['d_model']}, "
        f"inner width {model['d_ff']}, {model['heads']} heads, {model['norm']}-norm",
        f"  vocabulary       {d.vocabulary:,} pieces{'' if d.is_prepared else ' at most'}",
    ]
    step = (
        f"{AUTO_BATCH + ' ' if d.is_batch_auto else ''}at most {d.tokens_per_step:,} tokens in {d.slots} slots "
        f"(about {d.target_tokens_per_step:,} target tokens; {source})"
    )
    return format_facts(
        d, about, step, f" of {d.training_pairs:,} pairs" if d.training_pairs is not None else ""
    )


def recipe_shape(recipe: TranslationRecipe, prepared: Prepared | None) -> TransformerShape:
    """The recipe's model, with the vocabulary of the prepared data once there are any."""
    vocabulary = prepared.manifest.vocabulary if prepared else recipe.data.vocabulary
    return transformer_shape(recipe.model, vocabulary)


def mean_tokens(recipe: TranslationRecipe, prepared: Prepared | None, num_steps: int = 20) -> TokenCounts:
    """The mean of the first few steps, from the real lengths, or an assumed length without prepared data."""
    if prepared is None:
        return _assumed_tokens(recipe)
    plan = plan_batches(recipe, prepared)
    steps = [asdict(step_tokens(plan.step(step), prepared.train)) for step in range(num_steps)]
    return TokenCounts(**{name: sum(step[name] for step in steps) // num_steps for name in steps[0]})


def _assumed_tokens(recipe: TranslationRecipe) -> TokenCounts:
    pairs = max(1, recipe.train.batch_tokens // ASSUMED_LENGTH)
    return TokenCounts.of([(ASSUMED_LENGTH, ASSUMED_LENGTH)] * pairs)


def _by_layer(shape: TransformerShape) -> dict[str, int]:
    counts: dict[str, int] = {}
    for parameter in parameters(shape):
        part = parameter.layer.split(".")[0]
        counts[part] = counts.get(part, 0) + parameter.count
    return counts
