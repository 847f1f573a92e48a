"""The verb `experiment`: what is trained is known, and can be trained, before the first training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from echelon.commands.experiment import ExperimentOptions, choose_stages
from echelon.errors import RecipeError, UserError
from echelon.explain.experiments import Experiment
from echelon.recipe.workers import WorkerRange

RECIPES = Path(__file__).parents[2] / "recipes"


def options(kind: Experiment, recipe: str, to: Path, *overrides: str) -> ExperimentOptions:
    return ExperimentOptions(kind, RECIPES / f"{recipe}.toml", 20, to, None, list(overrides))


def test_what_a_recipe_cannot_do_is_left_out_and_said_before_anything_is_trained(tmp_path: Path) -> None:
    stages, notes = choose_stages(options("exchanges", "cifar10-fast", tmp_path))
    assert [stage.run for stage in stages] == ["all_reduce", "compressed", "low_rank"]
    assert [note.partition(" is left out: ")[0] for note in notes] == [
        "local",
        "servers-synchronous",
        "servers-asynchronous",
    ]
    assert "train.average_decay: replicas and parameter servers have no weights" in notes[0]


def test_slots_that_differ_from_the_recipe_s_are_said(tmp_path: Path) -> None:
    stages, (note,) = choose_stages(options("workers", "digits", tmp_path))
    assert all(stage.settings == ("train.slots=4",) for stage in stages)
    assert note.startswith("train.slots is 4 in all of them, not 2 as in the recipe")
    with pytest.raises(RecipeError, match="130 does not divide into 4 slots"):
        choose_stages(options("workers", "digits", tmp_path, "train.batch_images=130"))


def test_a_number_of_workers_for_the_experiment_on_workers_is_an_error(tmp_path: Path) -> None:
    asked = dataclasses.replace(options("workers", "digits", tmp_path), workers=WorkerRange(2, 2))
    with pytest.raises(UserError, match="--workers: this experiment trains with 1, 2, 4 workers"):
        choose_stages(asked)
