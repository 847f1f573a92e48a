"""Whether a run may go on with a recipe: the one it was begun with, but for what does not change what is learnt."""

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
_FOUND = ("hosts", "bucket_bytes", "hierarchical", "wire", "replicas")
"""Settings of the exchange that "auto" finds."""


def find_changes(before: Recipe, now: Recipe) -> list[str]:
    """Dotted paths of the keys that differ and must not."""
    return find_changes_in_tables(before.model_dump(), now.model_dump())


def refuse_another_s(address: str, theirs: Recipe, ours: Recipe) -> None:
    """UserError where the checkpoints at an address are those of a recipe that learns something else."""
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
    """The recipe with what was found in place of `train.exchange = "auto"`: the exchange, and settings of it."""
    settings = {key: value for key, value in found.items() if key != "exchange"}
    return recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update={"exchange": found["exchange"]}),
            "exchange": recipe.exchange.model_copy(update=settings),
        }
    )


def found_in(recipe: Recipe) -> dict[str, Any] | None:
    """What a recipe has in the place of "auto", or would have if it had been that; None where it still is."""
    if recipe.train.exchange == "auto":
        return None
    return {"exchange": recipe.train.exchange, **{key: getattr(recipe.exchange, key) for key in _FOUND}}
