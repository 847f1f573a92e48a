"""Checks between keys: each one's exact words, and that the sample has nothing wrong."""

from __future__ import annotations

from typing import Any

import pytest

from echelon.recipe.checks import find_problems
from echelon.recipe.schema import TranslationRecipe
from tests.sample_recipe import sample_recipe, sample_table

EMBEDDED = {"embedded": True}


def problems(*overrides: str, **sections: Any) -> list[str]:
    recipe = TranslationRecipe.model_validate(sample_table(*overrides, **sections))
    return [str(problem) for problem in find_problems(recipe)]


def test_a_good_recipe_has_no_problem() -> None:
    assert find_problems(sample_recipe()) == []


def test_a_batch_that_training_will_find_is_not_checked() -> None:
    assert problems("train.batch=auto", "train.batch_tokens=4096", "train.slots=3") == []
    assert problems("train.batch=auto", "train.batch_tokens=4096", "data.max_tokens=5000") == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["train.steps="], "train: has no length; give train.steps or train.epochs"),
        (
            ["train.epochs=2.5"],
            "train: has two lengths, steps = 100 and epochs = 2.5; remove one of them (--set train.epochs= does)",
        ),
        (
            ['data.mirrors=["s3://bucket/wmt"]'],
            "data.mirrors: 's3://bucket/wmt' is no folder, and no http or https address",
        ),
        (
            ["model.tied=false", "model.separate_source=true"],
            "model.separate_source: model.tied = false gives each its own matrix; remove one of them",
        ),
        (["train.stop_at=100"], "train.stop_at: 100 is not before the end, step 100; lower it"),
        (
            ["train.exchange=parameter_server", "train.precision=fp16"],
            'train.exchange: servers know no loss scale, which fp16 needs; use train.precision = "bf16"',
        ),
        (
            ["train.exchange=auto", 'train.exchange_may=["exact", "low_rank"]', "train.precision=fp16"],
            "train.exchange: keeps what it did not send, which the changing loss scale of fp16 would make wrong; "
            'use train.precision = "bf16", or leave "low_rank" out of train.exchange_may',
        ),
        (
            ["train.exchange=auto", 'train.exchange_may=["local"]', "exchange.every=4"],
            "exchange.overlap: 8 steps would not be over when the next agreement begins; use less than "
            'exchange.every = 4, or leave "local" out of train.exchange_may',
        ),
        (
            ["train.exchange=auto", 'train.exchange_may=["exact", "local"]', "train.average_decay=0.99"],
            "train.average_decay: replicas and parameter servers have no weights in common to average; remove it, "
            'or leave "local" out of train.exchange_may',
        ),
        (
            ["exchange.backup_workers=1", "exchange.synchronous=false"],
            "exchange.backup_workers: does nothing if exchange.synchronous = false; leave one of them out",
        ),
        (
            ["train.shard=optimiser", "train.exchange=auto"],
            'train.shard: train.exchange = "auto" does not share an optimiser out; use train.exchange = '
            '"all_reduce", or train.shard = "none"',
        ),
        (
            ["train.shard=optimiser", "train.exchange=parameter_server"],
            'train.shard: train.exchange = "parameter_server" does not share an optimiser out; use train.exchange = '
            '"all_reduce", or train.shard = "none"',
        ),
        (
            ["train.shard=optimiser", "exchange.hierarchical=true"],
            "train.shard: sums are not shared out host by host; use exchange.hierarchical = false, or "
            'train.shard = "none"',
        ),
        (
            ["train.shard=optimiser", "optimiser={kind='sgd', momentum=0.0}"],
            "train.shard: SGD without momentum keeps nothing that could be shared out; use train.shard = "
            '"none"',
        ),
        (
            ["train.shard=optimiser", "optimiser={kind='own', make='mine:Optimiser'}"],
            "train.shard: an optimiser of your own may look at more of the weights than a worker's part; use "
            'train.shard = "none"',
        ),
        (
            ["train.batch_tokens=4000", "train.slots=3"],
            "train.batch_tokens: 4000 does not divide into 3 slots; use 3999 or 4002",
        ),
        (
            ["train.batch_tokens=2", "train.slots=3"],
            "train.batch_tokens: 2 does not divide into 3 slots; use 3",
        ),
        (
            ["data.max_tokens=257"],
            "data.max_tokens: 257 is more than a slot holds (1024 / 4 = 256); lower it to 256, or raise "
            "train.batch_tokens",
        ),
        (["model.heads=5"], "model.heads: d_model = 128 does not divide into 5 heads; use a divisor"),
        (
            ["train.r_drop=5", "model.dropout=0"],
            "train.r_drop: needs dropout: without it, the two passes of a pair are equal",
        ),
        (["model.d_model=129", "model.heads=3"], "model.d_model: 129 is odd; positions need an even width"),
        (
            ["data.train.0.target="],
            "data.train.0: needs both source and target, or pairs, or embedded = true",
        ),
        (["data.valid={}"], "data.valid: needs both source and target, or pairs, or embedded = true"),
        (
            ["data.test={source='a', embedded=true}"],
            "data.test: is embedded and has files (source); choose one",
        ),
        (
            ["data.train.0={embedded=true}", "data.target_language=fr"],
            "data: the embedded corpus is en to de, not en to fr",
        ),
        (
            ["data.train.0={pairs='de.po.gz', columns=[2, 3]}"],
            "data.train.0.columns: [2, 3] is not in a catalogue, which has messages and translations; use [1, 2] or "
            "[2, 1]",
        ),
        (
            ["data.train.0={pairs='https://example.org/x.MO?raw=1', columns=[1, 1]}"],
            "data.train.0.columns: [1, 1] is not in a catalogue, which has messages and translations; use [1, 2] or "
            "[2, 1]",
        ),
        (
            ["data.train.0={pairs='memory.tmx', columns=[5, 7]}"],
            "data.train.0.columns: does nothing in a .tmx file, which names its languages; leave it out",
        ),
        (
            ["data.valid={embedded=true, columns=[2, 1]}"],
            "data.valid.columns: does nothing beside embedded = true; leave it out",
        ),
        (
            ["data.valid={embedded=true, pieces=true}", "data.tokeniser=x.model"],
            "data.valid.pieces: does nothing beside embedded = true; leave it out",
        ),
        (
            ["data.clean.min_words=9", "data.clean.max_words=8"],
            "data.clean.min_words: 9 is more than max_words; nothing would be left",
        ),
        (
            ["evaluate.final=average", "checkpoint.average=6", "checkpoint.every=10"],
            "checkpoint.average: 6 checkpoints cannot be averaged if only 5 are kept; raise checkpoint.keep to 6",
        ),
        (
            ["evaluate.final=average", "checkpoint.average=5"],
            'checkpoint.every: "auto" depends on the machine, and so would the average that evaluate.final asks for; '
            "give a number",
        ),
        (
            ["early_stop=[{metric='bleu'}, {metric='loss'}, {metric='bleu', patience=3}]"],
            "early_stop: bleu is there more than once; keep one",
        ),
    ],
)
def test_keys_that_do_not_fit_together_are_named_and_explained(overrides: list[str], says: str) -> None:
    assert problems(*overrides) == [says]


@pytest.mark.parametrize(
    "pairs",
    ["{pairs='x.tsv', columns=[5, 7]}", "{pairs='x.po', columns=[2, 1]}", "{pairs='x.tmx', columns=[1, 2]}"],
)
def test_columns_that_a_file_may_have_are_taken(pairs: str) -> None:
    assert problems(f"data.train.0={pairs}") == []


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (
            {"kind": "piecewise", "boundaries": [10], "learning_rates": [0.1]},
            "schedule.learning_rates: has 1 rates for 1 boundaries; give 2",
        ),
        (
            {"kind": "piecewise", "boundaries": [10, 10], "learning_rates": [0.1, 0.1, 0.1]},
            "schedule.boundaries: must increase from one to the next",
        ),
        (
            {"kind": "piecewise", "boundaries": [10], "learning_rates": [0.1, 0.01], "warmup_steps": 10},
            "schedule.warmup_steps: 10 leaves no step for the first rate, which ends before step 10; lower it",
        ),
        (
            {"kind": "polynomial", "learning_rate": 0.1, "final_learning_rate": 0.2},
            "schedule.final_learning_rate: is above the peak learning_rate; lower it",
        ),
    ],
)
def test_a_schedule_that_cannot_work_is_named_and_explained(schedule: dict[str, Any], says: str) -> None:
    assert problems(schedule=schedule) == [says]


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.max_tokens=256"],
        ["train.steps=", "train.epochs=0.5"],
        ["evaluate.final=average", "checkpoint.average=5", "checkpoint.every=10"],
        ["checkpoint.average=50"],
        ["early_stop=[{metric='bleu'}, {metric='loss'}]"],
        ["data.clean.min_words=8", "data.clean.max_words=8"],
        ["schedule={kind='cosine', learning_rate=0.1, warmup_steps=99}"],
        ["schedule={kind='piecewise', boundaries=[10], learning_rates=[1, 0.1], warmup_steps=9}"],
        ["schedule={kind='piecewise', boundaries=[], learning_rates=[1], warmup_steps=9}"],
        ["data.target_language=fr"],
        ["model.heads=64"],
    ],
)
def test_what_just_fits_is_accepted(overrides: list[str]) -> None:
    assert problems(*overrides) == []


def test_every_corpus_is_checked() -> None:
    data = {"train": [EMBEDDED, {}], "valid": {"source": "a"}, "test": {"target": "b"}, "max_tokens": 64}
    assert [text.split(":")[0] for text in problems(data=data)] == ["data.train.1", "data.valid", "data.test"]
