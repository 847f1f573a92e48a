"""Checks that need more than one key of a recipe of translation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from echelon.addresses import is_web_address
from echelon.errors import Problem, UserError
from echelon.recipe.checks import address_problems, division_problems, find_part_problems
from echelon.recipe.schema import Corpus, TranslationRecipe
from echelon.recipe.sizes import model_sizes, transformer_shape
from echelon.shapes.transformer import Sizes, parameter_sizes


def find_translation_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    """What is wrong between the keys of its own tables."""
    yield from _slot_problems(recipe)
    problems = list(_model_problems(recipe))
    yield from problems
    if recipe.lora is not None and not problems:
        shape = transformer_shape(recipe.model, recipe.data.vocabulary)
        yield from find_part_problems(recipe, parameter_sizes(shape))
    yield from _r_drop_problems(recipe)
    yield from _corpus_problems(recipe)
    yield from _fetching_problems(recipe)
    yield from _tokeniser_problems(recipe)
    yield from address_problems("data.prepared", recipe.data.prepared)


def refuse_idle_preset(recipe: TranslationRecipe, overrides: Sequence[str]) -> None:
    """A preset only fills in the sizes that a recipe leaves open; asking for one that fills in none is a mistake."""
    asked = [override for override in overrides if override.partition("=")[0].strip() == "model.preset"]
    if not asked:
        return
    sizes = Sizes.__annotations__
    if all(getattr(recipe.model, size) is not None for size in sizes):
        leave_out = " ".join(f"--set model.{size}=" for size in sizes)
        raise UserError(
            f"--set {asked[-1]} changes nothing, because the recipe gives every size itself; to use the preset's, "
            f"add {leave_out}"
        )


def _slot_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    if recipe.train.batch == "auto":
        return  # batch_tokens is not used
    tokens, slots = recipe.train.batch_tokens, recipe.train.slots
    yield from division_problems("train.batch_tokens", tokens, slots)
    if tokens % slots == 0 and recipe.data.max_tokens > tokens // slots:
        yield Problem(
            "data.max_tokens",
            f"{recipe.data.max_tokens} is more than a slot holds ({tokens} / {slots} = {tokens // slots}); "
            f"lower it to {tokens // slots}, or raise train.batch_tokens",
        )


def _model_problems(recipe: TranslationRecipe) -> Iterator[Problem]:
    if recipe.model.separate_source and not recipe.model.tied:
        yield Problem(
            "model.separate_source", "model.tied = false gives each its own matrix; remove one of them"
        )
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
