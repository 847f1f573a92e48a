"""What errors say, and the exit status each of them means."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon import errors
from echelon.errors import EchelonError, Problem, RecipeError, UserError, WorkerError


def tree(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


def test_users_mistakes_leave_with_2_and_failed_work_with_1() -> None:
    statuses = {
        kind.__name__: kind.exit_status for kind in tree(EchelonError) if issubclass(kind, EchelonError)
    }
    assert statuses == {
        "EchelonError": 1,
        "LostGroupError": 1,
        "UserError": 2,
        "RecipeError": 2,
        "DataError": 2,
        "RunError": 2,
        "HostsError": 2,
        "CheckpointError": 1,
        "WorkerError": 1,
        "RemoteError": 1,
        "TrainingError": 1,
        "PackageError": 1,
        "LabError": 1,
        "StoreError": 1,
        "CloudError": 1,
        "RefusedError": 1,
        "StoppedError": 75,
    }


def test_the_drawing_at_the_top_shows_the_whole_tree() -> None:
    drawn = {
        line.split()[0]
        for line in (errors.__doc__ or "").replace("├──", "").replace("└──", "").replace("│", "").splitlines()
        if "Error " in line
    }
    assert drawn == {kind.__name__ for kind in tree(EchelonError)}


def test_a_recipe_error_counts_its_problems_and_is_one_message() -> None:
    one = RecipeError("a.toml", [Problem("train.steps", "is wrong")])
    two = RecipeError("a.toml", [Problem("", "nothing here"), Problem("seed", "is wrong")])
    assert str(one) == "a.toml has 1 problem:\n  train.steps: is wrong"
    assert str(two) == "a.toml has 2 problems:\n  nothing here\n  seed: is wrong"
    assert isinstance(one, UserError)


@pytest.mark.parametrize(
    ("exit_code", "lines", "says"),
    [
        (3, ["a", "b"], "worker 1 on host failed (exit code 3); its log is logs/w\n  a\n  b"),
        (-9, [], "worker 1 on host failed (signal 9); its log is logs/w"),
    ],
)
def test_a_worker_error_says_who_where_and_why(exit_code: int, lines: list[str], says: str) -> None:
    error = WorkerError(host="host", rank=1, exit_code=exit_code, log=Path("logs/w"), last_lines=lines)
    assert str(error) == says


def test_a_worker_error_has_the_workers_own_message_and_what_was_tried() -> None:
    error = WorkerError(
        host="host", rank=1, exit_code=3, log=Path("logs/w"), last_lines=[], message=f"no memory\n{'x' * 999}"
    )
    assert str(error) == "worker 1 on host failed (exit code 3): no memory; its log is logs/w"
    assert error.summary == "worker 1 on host failed (exit code 3)"
    assert error.details == ": no memory; its log is logs/w"
