"""`compare` scores what was not scored, and what was scored before outputs were kept with their references."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands import evaluate as scoring
from echelon.commands.compare import score_missing
from echelon.errors import RunError
from echelon.runfolder import RunFolder
from tests.explain.scored_runs import write_scored
from tests.small_run import make_small_run

Echelon = Callable[..., subprocess.CompletedProcess[str]]


def test_only_what_was_not_kept_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not runs without a checkpoint, or those that are being trained; and what cannot be scored is no end."""
    scored: list[str] = []

    def score(run: RunFolder, options: scoring.EvaluateOptions, console: Console) -> None:
        assert options.split == "test"
        scored.append(run.name)
        raise RunError("its data are gone")

    monkeypatch.setattr(scoring, "evaluate", score)
    kept, without_checkpoint = write_scored(tmp_path / "kept", 0.3), write_scored(tmp_path / "without", 0.3)
    without_checkpoint.references_file("test").unlink()
    old, live = make_small_run(tmp_path / "old"), make_small_run(tmp_path / "live")
    console = Console(file=io.StringIO())
    runs = [run.path for run in (kept, without_checkpoint, old, live)]
    with live.lock():
        score_missing(runs, "test", console)
        score_missing(runs, "news", console)
    assert scored == ["old"]
    assert isinstance(console.file, io.StringIO)
    assert "old: cannot be scored: its data are gone" in console.file.getvalue().replace("\n", "")


@pytest.mark.slow
def test_a_trained_model_and_the_same_one_half_way_differ(
    tmp_path: Path, train_toy: Callable[..., RunFolder], echelon: Echelon
) -> None:
    """One training, scored where it was stopped and at its end."""
    half = train_toy("half", "train.steps=200", "train.stop_at=40")
    whole = shutil.copytree(half.path, tmp_path / "whole")
    echelon("train", whole)
    told = json.loads(echelon("compare", half.path, whole, "--json").stdout)["verdict"]
    (comparison,) = told["comparisons"]
    assert comparison["differs"], told["sentences"]
    assert comparison["conclusion"] == "half and whole differ: whole is better by BLEU and chrF."


def test_compare_prints_the_verdict(tmp_path: Path, echelon: Echelon) -> None:
    one, two = write_scored(tmp_path / "one", 0.3), write_scored(tmp_path / "two", 0.1, "train.steps=40")
    shown = echelon("compare", one.path, two.path).stdout
    assert (
        shown.index("WHAT DIFFERS")
        < shown.index("difference [95%], BLEU")
        < shown.index("is better by BLEU and chrF")
    )
    told = json.loads(echelon("compare", one.path, two.path, "--json", "--no-score").stdout)["verdict"]
    assert [each["differs"] for each in told["comparisons"]] == [True]
    echelon("compare", one.path, two.path, "--to", tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text().startswith(r"\begin{tabular}")
    missing = echelon("compare", one.path, two.path, "--on", "news").stdout
    assert "No verdict: one, two were not scored on the news set." in missing
