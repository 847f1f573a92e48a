"""`runs`: how runs stand, from what is in their folders; and making room without losing what counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from echelon.commands.results import format_runs
from echelon.commands.runs import folder_bytes, prune_runs, summarise, summarise_runs
from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from tests.integration.damage import set_trap
from tests.sample_image_recipe import sample_image_recipe
from tests.sample_recipe import sample_recipe


def make_run(folder: Path, name: str, records: list[dict[str, Any]], *overrides: str) -> RunFolder:
    run = RunFolder(folder / name)
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe(*overrides)))
    writer = RecordWriter(run.worker_records(0))
    for record in records:
        writer.write(**record)
    writer.close()
    return run


START = {"kind": "start", "step": 0, "steps": 100, "workers": 1}
STEP = {"kind": "step", "step": 40, "loss": 1.0}
VALID = {"kind": "valid", "step": 40, "bleu": 12.5}


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], "not started"),
        ([START, STEP], "interrupted"),
        ([START, STEP, {"kind": "end", "step": 100, "outcome": "finished"}], "finished"),
        ([START, STEP, {"kind": "end", "step": 60, "outcome": "stopped early"}], "stopped early"),
        ([START, STEP, {"kind": "end", "step": 40, "outcome": "interrupted"}], "interrupted"),
        ([START, STEP, {"kind": "failure", "message": "x"}], "interrupted"),
        ([START, {"kind": "end", "step": 9, "outcome": "finished"}, START, STEP], "interrupted"),
    ],
)
def test_the_state_of_a_run_follows_from_its_last_start(
    tmp_path: Path, records: list[dict[str, Any]], state: str
) -> None:
    assert summarise(make_run(tmp_path, "a", records)).state == state


def test_a_locked_run_is_training_whatever_its_records_say(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [START, {"kind": "end", "step": 100, "outcome": "finished"}])
    with run.lock():
        assert summarise(run).state == "training"
    assert summarise(run).state == "finished"


def test_a_run_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [START, STEP, VALID, VALID | {"bleu": 11.0}, VALID | {"bleu": None}])
    summary = summarise(run)
    assert (summary.name, summary.path) == ("a", str(run.path))
    assert (summary.step, summary.steps) == (40, 100)
    assert (summary.bleu, summary.bleu_of) == (12.5, "validation")
    assert summary.bytes == folder_bytes(run.path) > run.recipe.stat().st_size
    write_json(run.score_file("test"), {"bleu": 10.25})
    assert (summarise(run).bleu, summarise(run).bleu_of) == (10.25, "test")


def test_a_run_has_no_keys_of_another_tasks_metrics(tmp_path: Path) -> None:
    translation = summarise(make_run(tmp_path, "a", [])).to_json()
    assert (translation["bleu"], translation["bleu_of"]) == (None, None)
    assert not {"top1", "top1_of", "metrics"} & translation.keys()
    images = make_run(tmp_path, "b", [START, VALID | {"bleu": None, "top1": 93.5}])
    images.recipe.write_text(dump_recipe(sample_image_recipe()))
    document = summarise(images).to_json()
    assert (document["top1"], document["top1_of"]) == (93.5, "validation")
    assert not {"bleu", "bleu_of"} & document.keys()


def test_scores_on_other_sets_are_listed_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [START, STEP, VALID])
    write_json(run.score_file("test"), {"bleu": 10.25, "signature": "x", "checkpoint": "best"})
    write_json(run.score_file("news"), {"bleu": 8.5, "loss": 2.0})
    run.score_file("damaged").write_text("{")
    summary = summarise(run)
    assert summary.scores == {"news": {"bleu": 8.5, "loss": 2.0}, "test": {"bleu": 10.25}}
    assert "BLEU 10.25 (test, best), BLEU 8.50 (news)" in format_runs([summary], tmp_path)


def test_a_run_that_went_back_to_its_checkpoint_stands_there(tmp_path: Path) -> None:
    again = START | {"step": 20}
    assert summarise(make_run(tmp_path, "a", [START, STEP, again])).step == 20
    assert summarise(make_run(tmp_path, "b", [START, STEP, again, STEP | {"step": 21}])).step == 21


def test_a_run_without_records_has_no_score_and_the_age_of_its_recipe(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [])
    summary = summarise(run)
    assert (summary.step, summary.steps, summary.bleu, summary.bleu_of) == (0, None, None, None)
    assert summary.last_change == run.recipe.stat().st_mtime


def test_runs_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        make_run(tmp_path, name, [])
    assert [run.name for run in summarise_runs(tmp_path)] == ["a", "b", "c"]
    assert summarise_runs(tmp_path / "none") == []


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path, name, [START])
    set_trap(RunFolder(tmp_path / "a").worker_records(0), "fifo")
    assert [run.state for run in summarise_runs(tmp_path)] == ["damaged", "interrupted"]


def save(run: RunFolder, step: int, best: int) -> None:
    import torch

    from echelon.files.checkpoint_layout import Best, TrainingState
    from tests.checkpoints import write_checkpoint

    state = TrainingState(step=step, best=Best(best, "bleu", 20.0))
    write_checkpoint(run.checkpoints, state, {"w": torch.zeros(1000)}, {"m": torch.zeros(1000)})


def checkpoints(run: RunFolder) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in run.checkpoints.glob("step-*"))


def test_pruning_keeps_the_best_and_the_last_and_counts_what_is_freed(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [])
    make_run(tmp_path, "empty", [])
    for step in (10, 20, 30, 40):
        save(run, step, best=min(step, 20))
    before = folder_bytes(tmp_path)
    freed = prune_runs(tmp_path)
    assert checkpoints(run) == [20, 40]
    assert freed == before - folder_bytes(tmp_path) > 0
    assert prune_runs(tmp_path) == 0


def test_pruning_keeps_what_the_recipe_averages(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [], "evaluate.final=average", "checkpoint.average=3", "checkpoint.every=10")
    for step in (10, 20, 30, 40, 50):
        save(run, step, best=10)
    prune_runs(tmp_path)
    assert checkpoints(run) == [10, 30, 40, 50]


def test_the_best_outside_of_the_interval_is_none_of_those_that_are_averaged(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [], "evaluate.final=average", "checkpoint.average=3", "checkpoint.every=20")
    for step in (20, 40, 50, 60):
        save(run, step, best=min(step, 50))
    prune_runs(tmp_path)
    assert checkpoints(run) == [20, 40, 50, 60]


def test_a_run_that_is_being_trained_is_not_pruned(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [])
    for step in (10, 20, 30):
        save(run, step, best=10)
    with run.lock():
        assert prune_runs(tmp_path) == 0
    assert checkpoints(run) == [10, 20, 30]


def test_only_runs_of_their_own_are_pruned_and_one_that_is_not_does_not_stop_it(tmp_path: Path) -> None:
    """A link in a folder from somebody else would have the checkpoints of another run removed."""
    mine = make_run(tmp_path / "mine", "good", [])
    make_run(tmp_path, "a", []).recipe.write_text("damaged")
    hostile, plain = make_run(tmp_path, "hostile", []), make_run(tmp_path, "plain", [])
    for run in (mine, plain, RunFolder(tmp_path / "a")):
        for step in (10, 20, 30):
            save(run, step, best=10)
    hostile.checkpoints.rmdir()
    hostile.checkpoints.symlink_to(mine.checkpoints)
    told: list[str] = []
    assert prune_runs(tmp_path, told.append) > 0
    assert (checkpoints(mine), checkpoints(plain)) == ([10, 20, 30], [10, 30])
    assert [line for line in told if "is a link" in line or "a/recipe.toml" in line] == told
    assert len(told) == 2


def test_a_damaged_checkpoint_does_not_count_as_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", [])
    for step in (10, 20, 30, 40):
        save(run, step, best=10)
    state = run.checkpoints / "step-00000040" / "state.json"
    state.write_text("x" * state.stat().st_size)
    prune_runs(tmp_path)
    assert checkpoints(run) == [10, 30, 40], "the best, the last whole one, and the damaged one to look at"
