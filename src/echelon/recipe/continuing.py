"""Whether a run may go on with a recipe: the one it was begun with, but for what does not change what is learnt."""

from __future__ import annotations

from typing import Any

from echelon.recipe.schema import Recipe

MAY_CHANGE = (
    "name",
    "data.prepared",
    "train.steps",
    "train.epochs",
    "train.stop_at",
    "train.workers",
    "train.kernels",
    "train.recompute",
    "train.log_every",
    "evaluate",
    "checkpoint",
    "early_stop",
    "restart",
    "track",
)
"""What may differ when a run goes on: how long, how often, on how many workers, by which code; not what is learnt from
what."""


def find_changes(before: Recipe, now: Recipe) -> list[str]:
    """Dotted paths of the keys that differ and must not."""
    return [
        key
        for key in changed_keys(before.model_dump(), now.model_dump())
        if not any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE)
    ]


def changed_keys(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of the keys whose values differ."""
    changed: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed += changed_keys(old, new, f"{prefix}{key}.")
        elif old != new:
            changed.append(f"{prefix}{key}")
    return changed


def with_found_exchange(recipe: Recipe, before: Recipe) -> Recipe:
    """The recipe with what the run before has found for `train.exchange = "auto"`."""
    if recipe.train.exchange != "auto" or before.train.exchange == "auto":
        return recipe
    found = {
        key: getattr(before.exchange, key) for key in ("hosts", "bucket_bytes", "hierarchical", "replicas")
    }
    return recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update={"exchange": before.train.exchange}),
            "exchange": recipe.exchange.model_copy(update=found),
        }
    )
