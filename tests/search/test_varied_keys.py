"""What `--vary` says: values and ranges, and every mistake in them at once, before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echelon.errors import RecipeError, UserError
from echelon.recipe.loading import load_recipe
from echelon.search.varied_keys import (
    ListedValues,
    ValueRange,
    as_settings,
    count_combinations,
    load_space,
    parse_varied,
    show_values,
)

RECIPES = Path(__file__).parents[2] / "recipes"
DEMO = RECIPES / "demo.toml"


def test_lists_and_ranges_are_read_as_toml_has_them() -> None:
    assert parse_varied("model.dropout=0.1,0.2") == ListedValues("model.dropout", (0.1, 0.2))
    assert parse_varied("train.precision=bf16,float32") == ListedValues(
        "train.precision", ("bf16", "float32")
    )
    assert parse_varied("model.tied=true,false") == ListedValues("model.tied", (True, False))
    assert parse_varied("a.b=[1,2],[3]") == ListedValues("a.b", ([1, 2], [3]))
    assert parse_varied("a.b=1e-4..1e-2:log") == ValueRange("a.b", 1e-4, 1e-2, is_log=True)
    assert parse_varied("a.b=8..64") == ValueRange("a.b", 8, 64, is_whole=True)
    assert parse_varied("a.b=-1.5..2") == ValueRange("a.b", -1.5, 2)


def test_points_of_a_range_are_evenly_apart_and_include_its_ends() -> None:
    assert parse_varied("a.b=0..1.0:5") == ListedValues("a.b", (0, 0.25, 0.5, 0.75, 1.0))
    assert parse_varied("a.b=1e-4..1e-2:log:3") == ListedValues("a.b", (1e-4, 1e-3, 1e-2))
    assert parse_varied("a.b=1..4:4") == ListedValues("a.b", (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.dropout", "write it as KEY=A,B,C or KEY=LOW..HIGH"),
        ("model.dropout=", "write it as"),
        ("model.dropout=0.1", "one value varies nothing; --set gives it to all trials"),
        ("model.dropout=0.1,0.1", "0.1 is there twice"),
        ("a.b=1e-2..1e-4:log", "the range is reversed; write 1e-4..1e-2:log"),
        ("a.b=0..1:log", "a logarithmic range begins above 0"),
        ("a.b=-1..1:log", "a logarithmic range begins above 0"),
        ("a.b=0.1..0.1", "one value varies nothing"),
        ("a.b=0..1:lin", "'lin' is not known"),
        ("a.b=0..1:1", "at least 2"),
        ("a.b=1..2:log:log", "once each"),
        ("a.b=1e-4...1e-2", "this is no range"),
        ("a.b=1e-4..x", "this is no range"),
        ("a.b=1..1e999", "the range has no end"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        parse_varied(text)


def test_all_problems_are_told_at_once_with_what_was_meant() -> None:
    with pytest.raises(RecipeError) as caught:
        load_space(
            DEMO,
            [],
            [
                "optimiser.learning_rat=1e-4..1e-2",
                "optimiser.learning_rate=1e-4..1e-2:log",
                "model.dropot=0.1,0.2",
                "model.dropout=0.1,1.5",
                "model.attention_dropout=0.3..0.1",
                "train.steps=100,200",
                "checkpoint.best=bleu,loss",
                "schedule.warmup_steps=1.5..3",
                "seed=1,2",
                "seed=3,4",
            ],
        )
    found = str(caught.value)
    assert found.startswith("--vary has 9 problems:")
    for said in (
        "the range is reversed",
        "seed: is varied twice",
        "optimiser.learning_rat: there is no such key",
        "optimiser.learning_rate: there is no such key; did you mean schedule.learning_rate?",
        "model.dropot: there is no such key; did you mean 'dropout'?",
        "model.dropout: 1.5 is not allowed",
        "train.steps: is the same for all trials; give it with --set",
        "checkpoint.best: is the same for all trials",
        "schedule.warmup_steps: 1.5 is not allowed: it must be a whole number",
    ):
        assert said in found, said


def test_a_table_that_the_recipe_does_not_have_is_not_taken_for_the_mistake() -> None:
    """Without [optimiser], a key in it would begin a table without a kind."""
    with pytest.raises(RecipeError) as caught:
        load_space(RECIPES / "lab.toml", ["optimiser="], ["optimiser.learning_rate=1e-4..1e-2"])
    assert "optimiser.learning_rate: there is no such key; did you mean schedule.learning_rate?" in str(
        caught.value
    )


def test_nothing_varied_is_a_mistake() -> None:
    with pytest.raises(RecipeError, match="nothing is varied"):
        load_space(DEMO, [], [])


def test_whole_ends_mean_whole_numbers_only_if_the_key_takes_no_others() -> None:
    _, (warmup, clip) = load_space(DEMO, [], ["schedule.warmup_steps=10..20", "train.clip_norm=1..4"])
    assert warmup == ValueRange("schedule.warmup_steps", 10, 20, is_whole=True)
    assert clip == ValueRange("train.clip_norm", 1.0, 4.0, is_whole=False)


def test_values_become_settings_that_the_recipe_reads_back() -> None:
    values = {
        "train.precision": "float32",
        "schedule.learning_rate": 0.00123,
        "seed": 4,
        "train.freeze": ["encoder"],
    }
    recipe = load_recipe(DEMO, as_settings(values))
    assert recipe.train.precision == "float32"
    assert recipe.model_dump()["schedule"]["learning_rate"] == 0.00123
    assert (recipe.seed, recipe.train.freeze) == (4, ["encoder"])


def test_a_value_of_a_range_is_short_and_inside() -> None:
    span = ValueRange("a", 0.00012345, 0.0098765)
    assert span.rounded(0.00123456) == 0.001235
    assert span.rounded(0.00012345001) == 0.0001235
    assert span.rounded(0.000123449) == 0.00012345, "0.0001234 would be below the range"
    assert span.rounded(0.0098764999) == 0.009876
    assert ValueRange("a", 0.0, 0.0098765).rounded(0.00987649) == 0.009876


def test_settings_are_counted_and_shown_by_their_last_words() -> None:
    listed = [ListedValues("a.x", (1, 2)), ListedValues("b.y", (1, 2, 3))]
    assert count_combinations(listed) == 6
    assert count_combinations([*listed, ValueRange("c", 0.0, 1.0)]) is None
    assert show_values({"a.x": 1, "b.y": "on"}) == "x 1, y on"
    assert show_values({"a.x": 1, "b.x": 2}) == "a.x 1, b.x 2"
