"""The examples of docs/own-parts: short, trained to the same bits however they are trained, scored and reported."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from echelon.monitor.records import RecordReader, read_records
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from tests.own.conftest import EXAMPLES, Verb
from tests.waiting import wait_until

NAMES = ("sentences", "letters", "discs")
ENOUGH = {"sentences": 90.0, "letters": 18.0, "discs": 40.0}
"""What each must reach of its first score: far more than a model that has learnt nothing."""


def weights(run: Path) -> dict[str, bytes]:
    """Of the newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    return {name: each.tobytes() for name, each in load_file(newest / "model.safetensors").items()}


def numbers(run: Path) -> list[Any]:
    """Every loss and every score of a run."""
    told = [r for r in read_records(RunFolder(run).worker_records(0)) if r["kind"] in ("step", "valid")]
    return sorted((r["kind"], r["step"], r["loss"]) for r in told)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_at_most_60_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_an_example_learns_the_same_with_one_worker_and_three(
    name: str, run_verb: Verb, tmp_path: Path
) -> None:
    recipe, one, three = EXAMPLES / f"{name}.toml", tmp_path / "one", tmp_path / "three"
    alone = run_verb("train", recipe, "--run", one, "--workers", 1)
    together = run_verb("train", recipe, "--run", three, "--workers", 3)
    key = next(key for key in alone["test"] if key in load_recipe(recipe).evaluate.scores)  # type: ignore[attr-defined]
    assert alone["test"][key] >= ENOUGH[name]
    assert together["test"][key] == alone["test"][key]
    assert numbers(three) == numbers(one)
    assert weights(three) == weights(one)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_killed_on_the_way_resumes_to_the_same_bits(
    name: str, run_verb: Verb, environment: dict[str, str], tmp_path: Path
) -> None:
    recipe, whole, killed = EXAMPLES / f"{name}.toml", tmp_path / "whole", tmp_path / "killed"
    run_verb("train", recipe, "--run", whole, "--workers", 2)
    words = ["train", str(recipe), "--run", str(killed), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "echelon", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    reader = RecordReader(RunFolder(killed).worker_records(0))
    wait_until(lambda: any(record["kind"] == "checkpoint" for record in reader.read()))
    for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    wait_until(lambda: not RunFolder(killed).is_locked())
    run_verb("train", recipe, "--run", killed, "--workers", 2)
    assert weights(killed) == weights(whole)
