"""Checks that need more than one key of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from echelon.addresses import PREFIX, find_secret
from echelon.errors import Problem
from echelon.recipe.compatibility import with_found
from echelon.recipe.schema import (
    Cosine,
    ExchangeClass,
    Noam,
    OwnOptimiser,
    Piecewise,
    Polynomial,
    Recipe,
    Sgd,
)
from echelon.recipe.tasks import RecipeDeclaration, find_task

_AUTO: dict[ExchangeClass, dict[str, Any]] = {
    "exact": {"exchange": "all_reduce"},
    "compressed": {"exchange": "compressed", "wire": "bf16"},
    "low_rank": {"exchange": "low_rank"},
    "local": {"exchange": "local", "replicas": 1},
}
"""What "auto" may make of a recipe: at least the mildest of each class; it sets wire and replicas to what fits."""


def find_problems(recipe: Recipe) -> list[Problem]:
    """Everything wrong with a recipe whose keys are right one by one."""
    task: RecipeDeclaration = find_task(recipe.task)
    return [
        *_length_problems(recipe),
        *task.find_problems(recipe),
        *_schedule_problems(recipe),
        *_checkpoint_problems(recipe),
        *_early_stop_problems(recipe),
        *_exchange_problems(recipe),
    ]


def secret_problems(value: Any, key: str = "") -> Iterator[Problem]:
    """Addresses with secrets anywhere in a recipe's table: it is copied into run folders, models and manifests."""
    match value:
        case dict() | list():
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for name, entry in entries:
                yield from secret_problems(entry, f"{key}.{name}" if key else str(name))
        case str() if secret := find_secret(value):
            yield Problem(
                key,
                f"has {secret} in its address, and everybody who sees the run or the model would have it; put it into "
                f"an environment variable, and write ${{{PREFIX}NAME}} in its place",
            )


def division_problems(key: str, whole: int, slots: int) -> Iterator[Problem]:
    """That a step of a given size cannot be shared out evenly."""
    if whole % slots:
        below, above = whole - whole % slots, whole + slots - whole % slots
        advice = f"use {below} or {above}" if below else f"use {above}"
        yield Problem(key, f"{whole} does not divide into {slots} slots; {advice}")


def address_problems(key: str, address: str | None) -> Iterator[Problem]:
    """That an address is none."""
    if address is not None and not re.fullmatch(r"[a-z][a-z0-9+.-]*://.+", address):
        yield Problem(key, f"{address!r} is no address; write it as s3://bucket/folder or gs://bucket/folder")


def _length_problems(recipe: Recipe) -> Iterator[Problem]:
    steps, epochs = recipe.train.steps, recipe.train.epochs
    if steps is None and epochs is None:
        yield Problem("train", "has no length; give train.steps or train.epochs")
    if steps is not None and epochs is not None:
        advice = "remove one of them (--set train.epochs= does)"
        yield Problem("train", f"has two lengths, steps = {steps} and epochs = {epochs:g}; {advice}")
    if steps is not None and recipe.train.stop_at is not None and recipe.train.stop_at >= steps:
        yield Problem(
            "train.stop_at", f"{recipe.train.stop_at} is not before the end, step {steps}; lower it"
        )


def _schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    schedule = recipe.schedule
    task: RecipeDeclaration = find_task(recipe.task)
    if isinstance(schedule, Noam) and task.width(recipe) is None:
        yield Problem("schedule.kind", '"transformer" is scaled by a Transformer\'s width; use another')
    if isinstance(schedule, Piecewise):
        if len(schedule.learning_rates) != len(schedule.boundaries) + 1:
            yield Problem(
                "schedule.learning_rates",
                f"has {len(schedule.learning_rates)} rates for {len(schedule.boundaries)} boundaries; "
                f"give {len(schedule.boundaries) + 1}",
            )
        if any(a >= b for a, b in zip(schedule.boundaries, schedule.boundaries[1:], strict=False)):
            yield Problem("schedule.boundaries", "must increase from one to the next")
        if schedule.boundaries and schedule.warmup_steps >= schedule.boundaries[0]:
            yield Problem(
                "schedule.warmup_steps",
                f"{schedule.warmup_steps} leaves no step for the first rate, which ends before step "
                f"{schedule.boundaries[0]}; lower it",
            )
    # A warm-up longer than the training is no mistake: it is how a short trial of a long recipe looks.
    if isinstance(schedule, Cosine | Polynomial) and schedule.final_learning_rate > schedule.learning_rate:
        yield Problem("schedule.final_learning_rate", "is above the peak learning_rate; lower it")


def _checkpoint_problems(recipe: Recipe) -> Iterator[Problem]:
    checkpoint = recipe.checkpoint
    if recipe.evaluate.final == "average" and checkpoint.every == "auto":
        yield Problem(
            "checkpoint.every",
            '"auto" depends on the machine, and so would the average that evaluate.final asks for; give a number',
        )
    if recipe.evaluate.final == "average" and checkpoint.average > checkpoint.keep:
        yield Problem(
            "checkpoint.average",
            f"{checkpoint.average} checkpoints cannot be averaged if only {checkpoint.keep} are kept; "
            f"raise checkpoint.keep to {checkpoint.average}",
        )
    yield from address_problems("checkpoint.mirror", checkpoint.mirror)


def _early_stop_problems(recipe: Recipe) -> Iterator[Problem]:
    metrics = [rule.metric for rule in recipe.early_stop]
    for metric in sorted({metric for metric in metrics if metrics.count(metric) > 1}):
        yield Problem("early_stop", f"{metric} is there more than once; keep one")


def _exchange_problems(recipe: Recipe) -> Iterator[Problem]:
    yield from _backup_problems(recipe)
    yield from _shard_problems(recipe)
    if recipe.train.exchange != "auto":
        yield from find_exchange_problems(recipe)
        return
    for allowed in recipe.train.exchange_may:
        for problem in find_exchange_problems(with_found(recipe, _AUTO[allowed])):
            advice = f'or leave "{allowed}" out of train.exchange_may'
            yield Problem(problem.key, f"{problem.message}, {advice}")


def find_exchange_problems(recipe: Recipe) -> list[Problem]:
    """What stands between a recipe and the exchange that it names."""
    return [*_replica_problems(recipe), *_server_problems(recipe), *_feedback_problems(recipe)]


def _replica_problems(recipe: Recipe) -> Iterator[Problem]:
    settings = recipe.exchange
    if recipe.train.exchange != "local":
        return
    if settings.replicas > recipe.train.slots:
        advice = f"raise train.slots to a multiple of {settings.replicas}"
        yield Problem(
            "exchange.replicas",
            f"{settings.replicas} replicas cannot share {recipe.train.slots} slots; {advice}",
        )
    if settings.overlap >= settings.every:
        yield Problem(
            "exchange.overlap",
            f"{settings.overlap} steps would not be over when the next agreement begins; "
            f"use less than exchange.every = {settings.every}",
        )
    yield from _average_problems(recipe)


def _average_problems(recipe: Recipe) -> Iterator[Problem]:
    if recipe.train.average_decay is not None:
        yield Problem(
            "train.average_decay",
            "replicas and parameter servers have no weights in common to average; remove it",
        )


def _server_problems(recipe: Recipe) -> Iterator[Problem]:
    if recipe.train.exchange != "parameter_server":
        return
    yield from _average_problems(recipe)
    if recipe.train.precision == "fp16":
        yield Problem(
            "train.exchange", 'servers know no loss scale, which fp16 needs; use train.precision = "bf16"'
        )


def _backup_problems(recipe: Recipe) -> Iterator[Problem]:
    settings = recipe.exchange
    if settings.backup_workers and not settings.synchronous:
        yield Problem(
            "exchange.backup_workers",
            "does nothing if exchange.synchronous = false; leave one of them out",
        )


def _shard_problems(recipe: Recipe) -> Iterator[Problem]:
    if recipe.train.shard == "none":
        return
    without = 'or train.shard = "none"'
    if recipe.train.exchange != "all_reduce":
        yield Problem(
            "train.shard",
            f'train.exchange = "{recipe.train.exchange}" does not share an optimiser out; '
            f'use train.exchange = "all_reduce", {without}',
        )
    elif recipe.exchange.hierarchical:
        yield Problem(
            "train.shard",
            f"sums are not shared out host by host; use exchange.hierarchical = false, {without}",
        )
    if isinstance(recipe.optimiser, OwnOptimiser):
        yield Problem(
            "train.shard",
            "an optimiser of your own may look at more of the weights than a worker's part; use "
            'train.shard = "none"',
        )
    if isinstance(recipe.optimiser, Sgd) and not recipe.optimiser.momentum:
        yield Problem(
            "train.shard",
            'SGD without momentum keeps nothing that could be shared out; use train.shard = "none"',
        )


def _feedback_problems(recipe: Recipe) -> Iterator[Problem]:
    owes = recipe.train.exchange == "low_rank" or (
        recipe.train.exchange == "compressed" and recipe.exchange.wire == "int8"
    )
    if owes and recipe.train.precision == "fp16":
        yield Problem(
            "train.exchange",
            "keeps what it did not send, which the changing loss scale of fp16 would make wrong; "
            'use train.precision = "bf16"',
        )
