"""A small complete recipe that tests copy and change."""

from __future__ import annotations

import copy
from typing import Any

from echelon.recipe.loading import apply_override, check_recipe
from echelon.recipe.schema import TranslationRecipe

_TABLE: dict[str, Any] = {
    "version": 1,
    "name": "sample",
    "data": {
        "train": [{"source": "train.en", "target": "train.de"}],
        "valid": {"source": "valid.en", "target": "valid.de"},
        "vocabulary": 200,
        "max_tokens": 64,
    },
    "model": {"preset": "tiny"},
    "train": {"steps": 100, "batch_tokens": 1024, "slots": 4},
    "schedule": {"kind": "fixed", "learning_rate": 1e-3},
}


def sample_table(*overrides: str, **sections: Any) -> dict[str, Any]:
    """The sample as a table; `sections` replace whole sections, then `overrides` are applied as by --set."""
    table = copy.deepcopy(_TABLE) | sections
    for override in overrides:
        apply_override(table, override)
    return table


def sample_recipe(*overrides: str, **sections: Any) -> TranslationRecipe:
    """The sample as a checked recipe."""
    recipe = check_recipe(sample_table(*overrides, **sections), where="sample.toml")
    assert isinstance(recipe, TranslationRecipe)
    return recipe
