"""Checks that need more than one key of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from echelon.addresses import PREFIX, find_secret, is_web_address
from echelon.errors import Problem
from echelon.recipe.continuing import with_found
from echelon.recipe.schema import (
    ClassificationRecipe,
    Corpus,
    Cosine,
    ExchangeClass,
    Noam,
    Piecewise,
    Polynomial,
    Recipe,
    TranslationRecipe,
)
from echelon.recipe.sizes import model_pixels, model_sizes

_AUTO: dict[ExchangeClass, dict[str, Any]] = {
    "exact": {"exchange": "all_reduce"},
    "compressed": {"exchange": "compressed", "wire": "bf16"},
    "low_rank": {"exchange": "low_rank"},
    "local": {"exchange": "local", "replicas": 1},
}
"""What "auto" may make of a recipe: at least the mildest of each class; it sets wire and replicas to what fits."""


def find_problems(recipe: Recipe) -> list[Problem]:
    """Everything wrong with a recipe whose keys are right one by one."""
    return [
        *_length_problems(recipe),
        *_task_problems(recipe),
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


def _task_problems(recipe: Recipe) -> Iterator[Problem]:
    match recipe:
        case TranslationRecipe():
            yield from _slot_problems(recipe)
            yield from _model_problems(recipe)
            yield from _r_drop_problems(recipe)
            yield from _corpus_problems(recipe)
            yield from _fetching_problems(recipe)
            yield from _tokeniser_problems(recipe)
        case ClassificationRecipe():
            yield from _batch_problems(recipe)
            yield from _image_data_problems(recipe)
            yield from _augment_problems(recipe)
            yield from _network_problems(recipe)


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


def _division_problems(key: str, whole: int, slots: int) -> Iterator[Problem]:
    if whole % slots:
        below, above = whole - whole % slots, whole + slots - whole % slots
        advice = f"use {below} or {above}" if below else f"use {above}"
        yield Problem(key, f"{whole} does not divide into {slots} slots; {advice}")


def _slot_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    if recipe.train.batch == "auto":
        return  # batch_tokens is not used
    tokens, slots = recipe.train.batch_tokens, recipe.train.slots
    yield from _division_problems("train.batch_tokens", tokens, slots)
    if tokens % slots == 0 and recipe.data.max_tokens > tokens // slots:
        yield Problem(
            "data.max_tokens",
            f"{recipe.data.max_tokens} is more than a slot holds ({tokens} / {slots} = {tokens // slots}); "
            f"lower it to {tokens // slots}, or raise train.batch_tokens",
        )


def _model_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    sizes = model_sizes(recipe.model)
    d_model, heads = sizes["d_model"], sizes["heads"]
    if d_model % heads:
        yield Problem("model.heads", f"d_model = {d_model} does not divide into {heads} heads; use a divisor")
    if d_model % 2:
        yield Problem("model.d_model", f"{d_model} is odd; positions need an even width")


def _r_drop_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    model = recipe.model
    if recipe.train.r_drop and not (model.dropout or model.attention_dropout or model.activation_dropout):
        yield Problem("train.r_drop", "needs dropout: without it, the two passes of a pair are equal")


def _corpus_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
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
    files = [name for name in ("source", "target", "pairs", "archive") if getattr(corpus, name) is not None]
    if corpus.embedded and files:
        yield Problem(key, f"is embedded and has files ({', '.join(files)}); choose one")
    if corpus.embedded:
        idle = {
            "columns": corpus.columns != [1, 2],
            "pieces": corpus.pieces,
            "accelerator": corpus.accelerator is not None,
        }
        for name, is_set in idle.items():
            if is_set:
                yield Problem(f"{key}.{name}", "does nothing beside embedded = true; leave it out")
        return
    if corpus.pieces and corpus.accelerator is not None:
        yield Problem(
            f"{key}.accelerator", "does not go with pieces, which are no labels any more; remove one"
        )
    if corpus.pairs is not None and {"source", "target"} & set(files):
        yield Problem(key, "has pairs, which hold both sides, and source or target; choose one")
    elif corpus.pairs is None and not {"source", "target"} <= set(files):
        yield Problem(key, "needs both source and target, or pairs, or embedded = true")
    if corpus.pairs is None and corpus.columns != [1, 2]:
        yield Problem(f"{key}.columns", "is for pairs; source and target have no columns")
    if corpus.pairs is not None:
        yield from _column_problems(f"{key}.columns", corpus.pairs, corpus.columns)


def _column_problems(key: str, pairs: str, columns: list[int]) -> Iterator[Problem]:
    path = urlsplit(pairs).path if is_web_address(pairs) else pairs
    ending = re.search(r"\.(tmx|po|mo)(\.(gz|xz|zst|bz2))?$", path, re.IGNORECASE)
    kind = ending[1].lower() if ending else ""
    if kind == "tmx" and columns != [1, 2]:
        yield Problem(key, "does nothing in a .tmx file, which names its languages; leave it out")
    if kind in ("po", "mo") and sorted(columns) != [1, 2]:
        yield Problem(
            key,
            f"{columns} is not in a catalogue, which has messages and translations; use [1, 2] or [2, 1]",
        )


def _fetching_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    data = recipe.data
    for mirror in data.mirrors:
        if "://" in mirror and not is_web_address(mirror):
            yield Problem("data.mirrors", f"{mirror!r} is no folder, and no http or https address")
    for number, download in enumerate(data.download):
        for url in download.urls:
            if not is_web_address(url):
                yield Problem(f"data.download.{number}.urls", f"{url!r} is no http or https address")
        if any(earlier.name == download.name for earlier in data.download[:number]):
            yield Problem(
                f"data.download.{number}.name", f"{download.name} is there more than once; keep one"
            )


def _tokeniser_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    data = recipe.data
    corpora = [*data.train, data.valid, *([data.test] if data.test else [])]
    if data.tokeniser is not None and recipe.train.init_from is not None:
        yield Problem("data.tokeniser", "train.init_from has its own vocabulary; remove one of them")
    if data.tokeniser is None and any(corpus.pieces for corpus in corpora):
        yield Problem(
            "data.tokeniser", "is missing; corpora with pieces = true need the model that made the pieces"
        )


def _batch_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    images, slots = recipe.train.batch_images, recipe.train.slots
    yield from _division_problems("train.batch_images", images, slots)
    if images < 2 * slots:
        yield Problem(
            "train.batch_images",
            f"{images} leaves less than two pictures for each of {slots} slots, and BatchNorm needs two; "
            f"use {2 * slots} or more",
        )


def _image_data_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    data = recipe.data
    if data.source in ("folder", "idx") and data.path is None:
        yield Problem("data.path", f'is missing; source = "{data.source}" needs it')
    if data.source != "idx" and data.class_names is not None:
        yield Problem("data.class_names", "are those of the folders, or of the data set; remove it")
    if data.source == "digits" and data.path is not None:
        yield Problem("data.path", "the digits come with scikit-learn and have no path; remove it")
    if data.source != "cifar10" and not data.verify:
        yield Problem("data.verify", "only CIFAR-10's files have known hashes to be verified; remove it")
    if data.source == "folder" and data.pixels is None:
        yield Problem("data.pixels", 'is missing; source = "folder" needs it, as pictures differ in size')
    if data.source != "folder" and data.stored_pixels is not None:
        yield Problem("data.stored_pixels", f"{data.source} is stored as it is; remove it")
    if data.stored_pixels is not None and data.pixels is not None and data.stored_pixels < data.pixels:
        yield Problem("data.stored_pixels", f"{data.stored_pixels} is less than data.pixels; raise it")
    if data.valid_images == 0:
        if recipe.evaluate.final == "best":
            advice = 'set it to "last" or "average"'
            yield Problem(
                "evaluate.final", f'"best" is chosen on a validation set, and there is none; {advice}'
            )
        if recipe.early_stop:
            yield Problem("early_stop", "needs a validation set; remove it, or raise data.valid_images")


def _augment_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    augment, pixels = recipe.data.augment, _seen_pixels(recipe)
    if augment.pad and augment.min_area is not None:
        yield Problem("data.augment", "has both pad and min_area, two ways to crop; choose one")
    if augment.pad and augment.border == "mirror" and pixels is not None and augment.pad >= pixels:
        yield Problem("data.augment.pad", f"a mirrored border of {augment.pad} is wider than the picture")
    if pixels is not None and recipe.evaluate.shift >= pixels:
        yield Problem("evaluate.shift", f"{recipe.evaluate.shift} moves the whole picture away; lower it")
    if pixels is not None and augment.cutout > pixels:
        yield Problem("data.augment.cutout", f"{augment.cutout} is more than the picture's {pixels} pixels")


def _network_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    model = recipe.model
    if model.preset == "speednet":
        for key in ("stem", "zero_init"):
            if getattr(model, key):
                yield Problem(f"model.{key}", "belongs to ResNets; speednet has none")
    pixels = _seen_pixels(recipe)
    if model.preset == "speednet" and pixels is not None and pixels < 26:
        message = f"{pixels} is too few for speednet, which halves the picture three times and pools"
        yield Problem("data.pixels", f"{message}; use 26 or more")


def _seen_pixels(recipe: ClassificationRecipe) -> int | None:
    """Height and width of what the model sees; None where that is missing, which is a problem of its own."""
    data = recipe.data
    return None if data.source == "folder" and data.pixels is None else model_pixels(data)


def _schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    schedule = recipe.schedule
    if isinstance(schedule, Noam) and isinstance(recipe, ClassificationRecipe):
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
            f"{checkpoint.average} checkpoints cannot be averaged where only {checkpoint.keep} are kept; "
            f"raise checkpoint.keep to {checkpoint.average}",
        )
    yield from _address_problems("checkpoint.mirror", checkpoint.mirror)
    if isinstance(recipe, TranslationRecipe):
        yield from _address_problems("data.prepared", recipe.data.prepared)


def _address_problems(key: str, address: str | None) -> Iterator[Problem]:
    if address is not None and not re.fullmatch(r"[a-z][a-z0-9+.-]*://.+", address):
        yield Problem(key, f"{address!r} is no address; write it as s3://bucket/folder or gs://bucket/folder")


def _early_stop_problems(recipe: Recipe) -> Iterator[Problem]:
    metrics = [rule.metric for rule in recipe.early_stop]
    for metric in sorted({metric for metric in metrics if metrics.count(metric) > 1}):
        yield Problem("early_stop", f"{metric} is there more than once; keep one")


def _exchange_problems(recipe: Recipe) -> Iterator[Problem]:
    yield from _backup_problems(recipe)
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
    if settings.backup_workers and isinstance(recipe, ClassificationRecipe):
        yield Problem(
            "exchange.backup_workers",
            "BatchNorm needs what every slot has measured; leave backup workers out",
        )
    if settings.backup_workers and not settings.synchronous:
        yield Problem(
            "exchange.backup_workers",
            "does nothing where exchange.synchronous = false; leave one of them out",
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
