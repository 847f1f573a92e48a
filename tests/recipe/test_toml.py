"""A recipe written as TOML and read back is the same recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.recipe.loading import load_recipe, load_translation_recipe
from echelon.recipe.toml import dump_recipe, flat_settings
from echelon.runfolder import write_atomically
from tests.sample_recipe import sample_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_that_come_with_echelon_survive_a_round_trip(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    copy = tmp_path / "recipe.toml"
    write_atomically(copy, dump_recipe(recipe))
    assert load_recipe(copy) == recipe


corpora = st.fixed_dictionaries({"source": st.text(), "target": st.text()})
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
schedules = st.one_of(
    st.fixed_dictionaries({"kind": st.just("fixed"), "learning_rate": positive}),
    st.fixed_dictionaries({"kind": st.just("transformer"), "scale": positive}),
    st.fixed_dictionaries(
        {
            "kind": st.just("piecewise"),
            "boundaries": st.just([5, 7]),
            "learning_rates": st.just([0.1, 1, 2e-30]),
        }
    ),
)


@given(
    train=st.lists(corpora, min_size=1, max_size=3),
    valid=corpora,
    schedule=schedules,
    early_stop=st.lists(st.just({"metric": "loss", "min_delta": 1e-7}), max_size=1),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_recipe_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    train: list[dict[str, Any]],
    valid: dict[str, Any],
    schedule: dict[str, Any],
    early_stop: list[dict[str, Any]],
    seed: int,
) -> None:
    data = {"train": train, "valid": valid, "max_tokens": 64}
    recipe = sample_recipe(data=data, schedule=schedule, early_stop=early_stop, seed=seed)
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_bytes(dump_recipe(recipe).encode())
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    "text", ['"', "\\", "\x00", "\x7f", "\r\n", "\x85", "\u2028", "ß🙂", "'''", "#", "\ufeff"]
)
def test_awkward_characters_survive_a_round_trip(text: str, tmp_path: Path) -> None:
    data = {"train": [{"source": text, "target": f"{text} {text}"}], "valid": {"source": "a", "target": "b"}}
    recipe = sample_recipe(data=data | {"max_tokens": 64})
    path = tmp_path / "recipe.toml"
    path.write_bytes(dump_recipe(recipe).encode())
    assert load_translation_recipe(path).data.train[0].source == text


def test_the_file_is_one_that_a_person_would_write() -> None:
    recipe = sample_recipe("early_stop=[{metric='loss'}, {metric='bleu'}]", "train.clip_norm=1.0")
    text = dump_recipe(recipe)
    assert text.startswith('version = 1\nname = "sample"\ntask = "translation"\nseed = 1\nearly_stop = [\n')
    assert '\n    { metric = "bleu", patience = 10, min_delta = 0.0 },\n]\n\n[data]\n' in text
    assert '\n[[data.train]]\nembedded = false\nsource = "train.en"\ntarget = "train.de"\n' in text
    assert '\n[schedule]\nkind = "fixed"\nlearning_rate = 0.001\n' in text
    assert "None" not in text
    assert "epochs" not in text


def test_every_setting_has_its_full_key() -> None:
    settings = flat_settings(sample_recipe("train.steps=7", "checkpoint.every=100", "name=flat"))
    assert settings["name"] == "flat"
    assert settings["train.steps"] == "7"
    assert settings["checkpoint.every"] == "100"
    assert settings["data.train.0.embedded"] == "false"
    assert "train" not in settings
    assert "data.train" not in settings
