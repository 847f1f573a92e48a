"""Checks that need more than one key of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from echelon.errors import Problem
from echelon.recipe.schema import Corpus, Cosine, Piecewise, Polynomial, Recipe
from echelon.recipe.sizes import model_sizes


def find_problems(recipe: Recipe) -> list[Problem]:
    """Everything wrong with a recipe whose keys are right one by one."""
    return [
        *_length_problems(recipe),
        *_slot_problems(recipe),
        *_model_problems(recipe),
        *_corpus_problems(recipe),
        *_schedule_problems(recipe),
        *_checkpoint_problems(recipe),
        *_early_stop_problems(recipe),
        *_exchange_problems(recipe),
    ]


def _length_problems(recipe: Recipe) -> Iterator[Problem]:
    steps, epochs = recipe.train.steps, recipe.train.epochs
    if steps is None and epochs is None:
        yield Problem("train", "has no length; give train.steps or train.epochs")
    if steps is not None and epochs is not None:
        advice = "remove one of them (--set train.epochs= does)"
        yield Problem("train", f"has two lengths, steps = {steps} and epochs = {epochs:g}; {advice}")


def _slot_problems(recipe: Recipe) -> Iterator[Problem]:
    tokens, slots = recipe.train.batch_tokens, recipe.train.slots
    if tokens % slots:
        below, above = tokens - tokens % slots, tokens + slots - tokens % slots
        advice = f"use {below} or {above}" if below else f"use {above}"
        yield Problem("train.batch_tokens", f"{tokens} does not divide into {slots} slots; {advice}")
    elif recipe.data.max_tokens > tokens // slots:
        yield Problem(
            "data.max_tokens",
            f"{recipe.data.max_tokens} is more than a slot holds ({tokens} / {slots} = {tokens // slots}); "
            f"lower it to {tokens // slots}, or raise train.batch_tokens",
        )


def _model_problems(recipe: Recipe) -> Iterator[Problem]:
    sizes = model_sizes(recipe.model)
    d_model, heads = sizes["d_model"], sizes["heads"]
    if d_model % heads:
        yield Problem("model.heads", f"d_model = {d_model} does not divide into {heads} heads; use a divisor")
    if d_model % 2:
        yield Problem("model.d_model", f"{d_model} is odd; positions need an even width")


def _corpus_problems(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    for number, corpus in enumerate(data.train):
        yield from _one_corpus_problems(f"data.train.{number}", corpus)
    yield from _one_corpus_problems("data.valid", data.valid)
    if data.test is not None:
        yield from _one_corpus_problems("data.test", data.test)
    splits = [*data.train, data.valid, *([data.test] if data.test else [])]
    languages = (data.source_language, data.target_language)
    if any(corpus.embedded for corpus in splits) and languages != ("en", "de"):
        yield Problem("data", f"the embedded corpus is en to de, not {languages[0]} to {languages[1]}")
    if data.clean.min_words > data.clean.max_words:
        yield Problem(
            "data.clean.min_words", f"{data.clean.min_words} is more than max_words; nothing would be left"
        )


def _one_corpus_problems(key: str, corpus: Corpus) -> Iterator[Problem]:
    files = [name for name in ("source", "target") if getattr(corpus, name) is not None]
    if corpus.embedded and files:
        yield Problem(key, f"is embedded and has files ({', '.join(files)}); choose one")
    if not corpus.embedded and len(files) < 2:
        yield Problem(key, "needs both source and target, or embedded = true")


def _schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    schedule = recipe.schedule
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
            f"{checkpoint.average} checkpoints cannot be averaged where only {checkpoint.keep} are kept; "
            f"raise checkpoint.keep to {checkpoint.average}",
        )
    for key, address in (
        ("checkpoint.mirror", recipe.checkpoint.mirror),
        ("data.prepared", recipe.data.prepared),
    ):
        if address is not None and not re.fullmatch(r"[a-z][a-z0-9+.-]*://.+", address):
            yield Problem(
                key, f"{address!r} is no address; write it as s3://bucket/folder or gs://bucket/folder"
            )


def _early_stop_problems(recipe: Recipe) -> Iterator[Problem]:
    metrics = [rule.metric for rule in recipe.early_stop]
    for metric in sorted({metric for metric in metrics if metrics.count(metric) > 1}):
        yield Problem("early_stop", f"{metric} is there more than once; keep one")


def _exchange_problems(recipe: Recipe) -> Iterator[Problem]:
    settings = recipe.exchange
    if recipe.train.exchange == "local" and settings.replicas > recipe.train.slots:
        advice = f"raise train.slots to a multiple of {settings.replicas}"
        yield Problem(
            "exchange.replicas",
            f"{settings.replicas} replicas cannot share {recipe.train.slots} slots; {advice}",
        )
    if recipe.train.exchange == "local" and settings.overlap >= settings.every:
        yield Problem(
            "exchange.overlap",
            f"{settings.overlap} steps would not be over when the next agreement begins; "
            f"use less than exchange.every = {settings.every}",
        )
    owes = recipe.train.exchange == "low_rank" or (
        recipe.train.exchange == "compressed" and recipe.exchange.wire == "int8"
    )
    if owes and recipe.train.precision == "fp16":
        yield Problem(
            "train.exchange",
            "keeps what it did not send, which the changing loss scale of fp16 would make wrong; "
            'use train.precision = "bf16"',
        )
