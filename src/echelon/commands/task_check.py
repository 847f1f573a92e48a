"""`doctor --task`: whether a task of one's own keeps to what Echelon's promises rest on.

A slot's result may depend on the slot's examples and on its random numbers, and on nothing else. Two processes, as two
workers would, compute the same slots in other orders, one of them twice; what they find must be equal to the bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from echelon.errors import TrainingError, UserError
from echelon.recipe.loading import load_recipe
from echelon.recipe.own_code import is_import_path
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe

_ORDERS = ((0, 1, 2, 0), (2, 1, 0))
"""In which the processes compute slots; the first comes back to one."""


def check_task(recipe_file: Path) -> dict[str, Any]:
    """The keys of `doctor --task --json`; UserError if the recipe's task is not one of the user's."""
    recipe = load_recipe(recipe_file)
    if not is_import_path(recipe.task):
        raise UserError(
            f"{recipe_file}: its task is {recipe.task}, which is Echelon's; --task checks one of your own"
        )
    seen = [_compute(recipe, order) for order in _ORDERS]
    return {"task": recipe.task, "slots": sorted(set(_ORDERS[0])), "findings": find_faults(*seen)}


def find_faults(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What the two processes do not agree on, in words; `first` computed its first slot twice."""
    findings = list(first["changed"])
    slots = first["slots"]
    if slots[0] != slots[-1]:
        findings.append(
            "the same slot, computed twice by one process, has two results: does loading draw random numbers other "
            "than the given ones, or does the model keep something between batches?"
        )
    elif sorted(map(tuple, slots[:-1])) != sorted(map(tuple, other["slots"])):
        findings.append(
            "slots have other results in another process or another order: does anything depend on what came before, "
            "on the time, on hash() or on the order of a set?"
        )
    if first["initial"] != other["initial"]:
        findings.append(
            "the new model has other weights in another process: is it initialised by torch alone?"
        )
    if first["scores"] != other["scores"]:
        findings.append(
            "the validation set has other scores if two workers share it: does `measure` depend on other batches?"
        )
    return findings


def format_check(found: dict[str, Any]) -> str:
    """Format the result as text."""
    if not found["findings"]:
        return f"{found['task']}: slots have the same result twice, in another order and on another worker"
    return "\n".join([f"{found['task']}:", *(f"  - {finding}" for finding in found["findings"])])


def _compute(recipe: Recipe, order: tuple[int, ...]) -> dict[str, Any]:
    """What a process of its own makes of the slots, in this order."""
    command = [sys.executable, "-P", "-m", "echelon.train.task_trial", *map(str, order)]
    # Python's own hashes differ between processes unless this is set, and workers do not set it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        command, input=dump_recipe(recipe), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise TrainingError(f"{recipe.task} fails:\n{done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
