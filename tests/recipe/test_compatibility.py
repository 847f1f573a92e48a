"""What of a recipe may change while a run goes on."""

from __future__ import annotations

import pytest

from echelon.recipe.compatibility import changed_keys, find_changes, found_in, with_found
from tests.sample_recipe import sample_recipe


def test_changed_keys_are_dotted_paths_of_what_differs() -> None:
    before = {"a": 1, "b": {"c": [1, 2], "d": None, "e": {"f": 1}}, "gone": 1, "kind": {"x": 1}}
    now = {"a": 1, "b": {"c": [1, 3], "d": 5, "e": {"f": 1}}, "new": 2, "kind": 7}
    assert changed_keys(before, now) == ["b.c", "b.d", "gone", "kind", "new"]
    assert changed_keys(before, before) == []


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("train.steps=7", []),
        ("checkpoint.keep=9", []),
        ("train.kernels=off", []),
        ("train.recompute=true", []),
        ("seed=99", ["seed"]),
        ("train.slots=1", ["train.slots"]),
    ],
)
def test_only_what_changes_the_model_counts(override: str, changes: list[str]) -> None:
    assert find_changes(sample_recipe(), sample_recipe(override)) == changes


def test_what_auto_was_found_to_be_is_kept() -> None:
    settings = ("exchange.wire=int8", "exchange.hosts=1", "exchange.bucket_bytes=1048576")
    before = sample_recipe("train.exchange=compressed", *settings)
    found = found_in(before)
    assert found is not None
    assert find_changes(before, with_found(sample_recipe("train.exchange=auto"), found)) == []
    assert found_in(sample_recipe("train.exchange=auto")) is None
