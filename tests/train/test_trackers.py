"""Trackers: what MLflow's local store and wandb's offline files hold after a run, and after it was resumed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.sample_recipe import sample_recipe
from tests.waiting import wait_until

from echelon.errors import UserError
from echelon.extras import install_hint
from echelon.monitor.heartbeat import Heart
from echelon.monitor.records import RecordWriter, read_records
from echelon.runfolder import RunFolder
from echelon.train import trackers
from echelon.train.trackers import BehindTracker, Tracker, build_trackers

Track = Callable[..., Tracker]
AT = 1_700_000_000.0


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def records(run: RunFolder) -> Iterator[RecordWriter]:
    with closing(RecordWriter(run.worker_records(0))) as writer:
        yield writer


@pytest.fixture
def track(run: RunFolder, records: RecordWriter) -> Track:
    def build(*settings: str) -> Tracker:
        recipe = sample_recipe("track.tensorboard=false", *settings)
        (tracker,) = build_trackers(recipe, run, 1, records, Heart())
        return tracker

    return build


class Server:
    """A tracker that takes points when it is let, and then fails if it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_open = threading.Event()
        self.steps: list[int] = []
        self.is_closed = False

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        self.is_open.wait()
        if self.error is not None:
            raise self.error
        self.steps.append(step)

    def text(self, name: str, text: str, step: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def messages(run: RunFolder) -> list[str]:
    return [record["message"] for record in read_records(run.worker_records(0))]


def test_a_tracker_that_a_full_disk_does_not_let_begin_is_reported_and_left_out(
    run: RunFolder, records: RecordWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trackers.TensorBoardTracker, "__init__", refuse)
    recipe = sample_recipe("track.tensorboard=true")
    assert build_trackers(recipe, run, 1, records, Heart()) == []
    assert messages(run) == [
        "TensorBoard gets no more points: [Errno 28] No space left on device; training continues"
    ]


def test_a_slow_server_is_not_waited_for_and_gets_all_points_in_the_end(
    run: RunFolder, records: RecordWriter
) -> None:
    server = Server()
    tracker = BehindTracker("a server", server, records, Heart())
    for step in range(100):  # hangs here if anything waits: the server takes nothing yet
        tracker.scalars({"loss": 1.0}, step, AT)
    server.is_open.set()
    tracker.close()
    assert server.steps == list(range(100))
    assert server.is_closed
    assert messages(run) == []


def test_a_server_that_fails_ends_no_training_and_is_named_once(
    run: RunFolder, records: RecordWriter
) -> None:
    server = Server(ConnectionError("no route to host"))
    server.is_open.set()
    tracker = BehindTracker("a server", server, records, Heart())
    for step in range(100):
        tracker.scalars({"loss": 1.0}, step, AT)
    tracker.close()
    assert messages(run) == ["a server gets no more points: no route to host; training continues"]


def test_a_server_that_takes_nothing_is_left_behind(
    run: RunFolder, records: RecordWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_MOST_WAITING", 10)
    monkeypatch.setattr(trackers, "_PATIENCE_S", 0.1)
    server = Server()
    tracker = BehindTracker("a server", server, records, Heart())
    for step in range(100):
        tracker.scalars({"loss": 1.0}, step, AT)
    tracker.close()
    assert messages(run) == ["a server gets no more points: it is 10 points behind; training continues"]
    server.is_open.set()


@pytest.mark.filterwarnings("ignore")
def test_mlflows_store_holds_curves_samples_and_the_recipe_across_a_resume(
    run: RunFolder, track: Track, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow.tracking", reason=install_hint("mlflow"))
    store = tmp_path / "mlruns"
    for steps in (range(1, 4), range(4, 6)):  # the second is the same run, resumed
        tracker = track(f"track.mlflow={store}")
        for step in steps:
            tracker.scalars({"train/loss": 5.0 / step}, step, AT)
        tracker.text("samples/0", "**output** Haus", steps[-1])
        tracker.close()
    client = mlflow.MlflowClient(tracking_uri=store.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "sample"]
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(step, 5.0 / step) for step in range(1, 6)]
    assert {point.timestamp for point in history} == {AT * 1000}
    assert found.data.params["train.batch_tokens"] == "1024"
    assert found.info.status == "FINISHED"
    assert [entry.path for entry in client.list_artifacts(found.info.run_id, "samples")] == [
        "samples/0-step-00000003.md",
        "samples/0-step-00000005.md",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandbs_offline_files_hold_the_run(run: RunFolder, track: Track) -> None:
    pytest.importorskip("wandb", reason=install_hint("wandb"))
    tracker = track("track.wandb=offline")
    for step in range(1, 4):
        tracker.scalars({"train/loss": 5.0 / step}, step, AT)
    tracker.text("samples/0", "Haus am See", 3)
    tracker.close()
    (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    # wandb's own process writes, on a busy machine after `finish` has returned.
    wait_until(lambda: b"Haus am See" in file.read_bytes())
    assert b"train/loss" in file.read_bytes()
    first = run.trackers.read_text()
    track("track.wandb=offline").close()
    assert run.trackers.read_text() == first


def test_a_tracker_whose_package_is_missing_names_the_extra(
    run: RunFolder, track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="extra mlflow"):
        track("track.mlflow=mlruns")
    with pytest.raises(UserError, match="extra wandb"):
        track("track.wandb=offline")


def test_without_a_wish_there_is_no_tracker(run: RunFolder, records: RecordWriter) -> None:
    assert build_trackers(sample_recipe("track.tensorboard=false"), run, 1, records, Heart()) == []
