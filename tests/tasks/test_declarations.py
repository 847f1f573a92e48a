"""What tasks declare: nothing else branches on the task, and another one is a row in the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echelon.commands.evaluate import ScoreDeclaration
from echelon.commands.given_sets import SetsDeclaration
from echelon.commands.prepare import PrepareDeclaration
from echelon.commands.remote_training import HostDeclaration
from echelon.commands.run_setup import ModelFilesDeclaration
from echelon.data.batch_plan import DataDeclaration
from echelon.declarations.declaration import TaskDeclaration
from echelon.explain.description import DescribeDeclaration
from echelon.explain.plain import SizesDeclaration
from echelon.explain.training_set import DataSizeDeclaration
from echelon.explain.workload import WorkloadDeclaration
from echelon.export.export import ExportDeclaration
from echelon.inference.model_folder import UseDeclaration
from echelon.recipe.loading import load_recipe
from echelon.recipe.tasks import TASKS, RecipeDeclaration, find_task
from echelon.resolve.measured import BatchDeclaration
from echelon.serve.app import ServeDeclaration
from echelon.serve.model_server import LoadDeclaration
from echelon.tasks import TaskBuilder
from tests.tasks.branches import branches_outside, find_branches

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example-task"
Run = Callable[..., Any]


def serves_every_layer(task: TaskDeclaration[Any, Any]) -> None:
    """For mypy alone: a declaration is what each layer asks for."""
    _recipe: RecipeDeclaration = task
    _data: DataDeclaration = task
    _prepare: PrepareDeclaration = task
    _files: ModelFilesDeclaration = task
    _hosts: HostDeclaration = task
    _batch: BatchDeclaration = task
    _builder: TaskBuilder = task
    _describe: DescribeDeclaration = task
    _sizes: SizesDeclaration = task
    _workload: WorkloadDeclaration = task
    _data_size: DataSizeDeclaration = task
    _use: UseDeclaration = task
    _sets: SetsDeclaration = task
    _score: ScoreDeclaration = task
    _export: ExportDeclaration = task
    _load: LoadDeclaration = task
    _serve: ServeDeclaration = task


def test_nothing_outside_of_the_declarations_branches_on_the_task() -> None:
    assert branches_outside() == []


@pytest.mark.parametrize(
    "branch",
    [
        "if isinstance(recipe, TranslationRecipe): pass",
        "match recipe:\n    case ClassificationRecipe(): pass",
        "if recipe.task == 'classification': pass",
        "unit = 'a' if unit != 'tokens' else 'b'",
        "match unit:\n    case 'images': pass",
        "is_scored = metric in ('bleu', 'chrf')",
    ],
)
def test_branches_on_the_task_are_found(branch: str) -> None:
    assert len(list(find_branches(branch))) == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_declaration_is_found_by_its_name_without_torch(name: str) -> None:
    program = (
        "import sys\n"
        "from echelon.recipe.tasks import find_task\n"
        f"find_task({name!r})\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    assert find_task(name).recipe.model_fields["task"].annotation.__args__ == (name,)


@pytest.mark.parametrize("recipe", ["demo", "digits", "cifar10-fast"])
def test_declared_parameters_are_those_that_are_described(recipe: str) -> None:
    loaded = load_recipe(ROOT / "recipes" / f"{recipe}.toml")
    task: TaskDeclaration[Any, Any] = find_task(loaded.task)
    sizes = task.parameter_sizes(loaded, None)
    numbers = 0
    for size in sizes.values():
        count = 1
        for side in size:
            count *= side
        numbers += count
    assert numbers == task.describe(loaded, None).parameters


@pytest.fixture
def run_example(tmp_path: Path) -> Run:
    """Runs verbs of a command line that has the example's row in its table of tasks."""
    row = 'from echelon.recipe.tasks import TASKS\nTASKS["language"] = "language"\n'
    (tmp_path / "sitecustomize.py").write_text(row)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)]),
        "ECHELON_CACHE": str(tmp_path / "cache"),
    }

    def run(*words: object, as_json: bool = True) -> Any:
        command = [sys.executable, "-m", "echelon", *map(str, words), *(["--json"] if as_json else [])]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if as_json else done.stdout

    return run


def test_another_task_is_trained_scored_and_reported_without_a_change_elsewhere(
    run_example: Run, tmp_path: Path
) -> None:
    recipe, run = EXAMPLE / "language.toml", tmp_path / "runs" / "language"
    described = run_example("describe", recipe)
    assert (described["parameters"], described["batch"]) == (2048, "32 sentences")
    trained = run_example("train", recipe, "--run", run, "--workers", "2")
    assert trained["finished"]
    assert trained["step"] == 60
    assert trained["test"]["accuracy"] > 90
    scored = run_example("evaluate", run, "--split", "valid")
    assert scored["accuracy"] == trained["valid"]["accuracy"] > 90
    report = run_example("report", run)
    assert report["workers"] == 2
    assert report["test"]["accuracy"] == trained["test"]["accuracy"]
    assert report["answers"]["step"]["answer"].count("sentences") == 1
    assert run_example("plan", recipe, "--on", "2x(1xV100, 1gbit)")["steps"] == 60
    (listed,) = run_example("runs", run.parent)
    assert listed["own_scores"] == {"accuracy": {"value": trained["test"]["accuracy"], "of": "test"}}
    assert run_example("benchmark", recipe, "--steps", "2")["sentences_per_second"] > 0
    accuracy = trained["test"]["accuracy"]
    assert f"accuracy {accuracy:.2f}% (test, step-" in run_example("runs", run.parent, as_json=False)
    assert " sentences/s, " in run_example("benchmark", recipe, "--steps", "2", as_json=False)
