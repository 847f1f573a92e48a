"""Whether a run may resume with a recipe: only settings that do not change what is learnt may differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echelon.errors import UserError
from echelon.recipe.schema import Recipe

MAY_CHANGE = (
    "name",
    "data.prepared",
    "train.steps",
    "train.epochs",
    "train.stop_at",
    "train.workers",
    "train.shard",
    "train.kernels",
    "train.recompute",
    "train.log_every",
    "evaluate",
    "checkpoint",
    "early_stop",
    "restart",
    "track",
)
"""Keys that may differ when a run resumes: duration, intervals, workers, code paths; not the data or the learning."""
_FOUND = ("hosts", "bucket_bytes", "hierarchical", "wire", "replicas")
"""Settings of the exchange that "auto" finds."""


def find_changes(before: Recipe, now: Recipe) -> list[str]:
    """Dotted paths of the keys that differ and must not."""
    return find_changes_in_tables(before.model_dump(), now.model_dump())


def require_same_learning(address: str, theirs: Recipe, ours: Recipe) -> None:
    """UserError if the checkpoints at an address are those of a recipe that learns something else."""
    if changes := find_changes(theirs, ours):
        raise UserError(
            f"checkpoint.mirror: {address} has checkpoints of another recipe ({', '.join(changes)} differ); "
            "use another address"
        )


def find_changes_in_tables(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """As `find_changes`, of recipes as tables."""
    return [
        key
        for key in changed_keys(before, now)
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


def with_found(recipe: Recipe, found: Mapping[str, Any]) -> Recipe:
    """The recipe with `train.exchange = "auto"` resolved: the exchange, and its settings."""
    settings = {key: value for key, value in found.items() if key != "exchange"}
    return recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update={"exchange": found["exchange"]}),
            "exchange": recipe.exchange.model_copy(update=settings),
        }
    )


def found_in(recipe: Recipe) -> dict[str, Any] | None:
    """What "auto" was resolved to, or would have been; None if it is not resolved yet."""
    if recipe.train.exchange == "auto":
        return None
    return {"exchange": recipe.train.exchange, **{key: getattr(recipe.exchange, key) for key in _FOUND}}
