"""Trackers: what MLflow's local store and wandb's offline files hold after a run, and after it was resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.lab.on_hosts import wait_until
from tests.sample_recipe import sample_recipe

from echelon.errors import UserError
from echelon.runfolder import RunFolder
from echelon.train.trackers import Tracker, build_trackers


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def track(run: RunFolder, *settings: str) -> Tracker:
    recipe = sample_recipe("track.tensorboard=false", *settings)
    (tracker,) = build_trackers(recipe, run, 1)
    return tracker


@pytest.mark.filterwarnings("ignore")
def test_mlflows_store_holds_curves_samples_and_the_recipe_across_a_resume(
    run: RunFolder, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow.tracking", reason="pip install 'echelon[mlflow]'")
    store = tmp_path / "mlruns"
    for steps in (range(1, 4), range(4, 6)):  # the second is the same run, resumed
        tracker = track(run, f"track.mlflow={store}")
        for step in steps:
            tracker.scalars({"train/loss": 5.0 / step}, step)
        tracker.text("samples/0", "**output** Haus", steps[-1])
        tracker.close()
    client = mlflow.MlflowClient(tracking_uri=store.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "sample"]
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(step, 5.0 / step) for step in range(1, 6)]
    assert found.data.params["train.batch_tokens"] == "1024"
    assert found.info.status == "FINISHED"
    assert [entry.path for entry in client.list_artifacts(found.info.run_id, "samples")] == [
        "samples/0-step-00000003.md",
        "samples/0-step-00000005.md",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandbs_offline_files_hold_the_run(run: RunFolder) -> None:
    pytest.importorskip("wandb", reason="pip install 'echelon[wandb]'")
    tracker = track(run, "track.wandb=offline")
    for step in range(1, 4):
        tracker.scalars({"train/loss": 5.0 / step}, step)
    tracker.text("samples/0", "Haus am See", 3)
    tracker.close()
    (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    # wandb's own process writes, on a busy machine after `finish` has returned.
    wait_until(lambda: b"Haus am See" in file.read_bytes(), patience_s=60)
    assert b"train/loss" in file.read_bytes()
    first = run.trackers.read_text()
    track(run, "track.wandb=offline").close()
    assert run.trackers.read_text() == first


def test_a_tracker_whose_package_is_missing_names_the_extra(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"echelon\[mlflow\]"):
        track(run, "track.mlflow=mlruns")
    with pytest.raises(UserError, match=r"echelon\[wandb\]"):
        track(run, "track.wandb=offline")


def test_without_a_wish_there_is_no_tracker(run: RunFolder) -> None:
    assert build_trackers(sample_recipe("track.tensorboard=false"), run, 1) == []
