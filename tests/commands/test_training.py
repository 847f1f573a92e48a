"""`train` before any worker starts: what may change when a run goes on, and what is written down."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from echelon.agent.outcome import RunOutcome
from echelon.commands import training
from echelon.commands.prepare import find_data, prepare_data
from echelon.commands.results import format_training
from echelon.commands.resume import last_step
from echelon.commands.run_setup import write_run
from echelon.commands.training import TrainOptions, notes, remove_run
from echelon.data.prepared import Prepared
from echelon.errors import RunError, UserError
from echelon.monitor.records import RecordWriter
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.runfolder import RunFolder, write_json
from tests.sample_corpus import write_corpus


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def run(tmp_path: Path, recipe_file: Path, console: Console) -> RunFolder:
    """A run that was begun with the sample recipe."""
    folder = RunFolder(tmp_path / "runs" / "sample")
    folder.create()
    recipe = load_recipe(recipe_file)
    write_run(folder, recipe, prepare_data(recipe, recipe_file.parent, console))
    return folder


def test_workers_without_a_slot_are_told_and_servers_are_not_among_them(
    recipe_file: Path, console: Console
) -> None:
    recipe = load_recipe(recipe_file, ["train.slots=2", "train.exchange=parameter_server"])
    prepared = prepare_data(recipe, recipe_file.parent, console)
    assert notes(recipe, prepared, WorkerRange(3, 3)) == []
    (note,) = notes(recipe, prepared, WorkerRange(4, 4))
    assert "a step has 2 slots, so 1 of 3 workers will have nothing to do" in note
    assert notes(recipe, prepared, parse_workers("auto")) == [], "nobody knows yet how many there will be"


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("seed=2", "seed"),
        ("train.batch_tokens=2048", "train.batch_tokens"),
        ("model.preset=small", "model.preset"),
        ("data.train.0.weight=2", "data.train"),
        ("schedule.learning_rate=0.5", "schedule.learning_rate"),
        ("train.label_smoothing=0", "train.label_smoothing"),
        ("optimiser={kind='sgd'}", "optimiser.beta1"),
    ],
)
def test_a_run_does_not_go_on_with_a_recipe_that_learns_something_else(
    run: RunFolder, recipe_file: Path, console: Console, override: str, changed: str
) -> None:
    before = run.recipe.read_text()
    with pytest.raises(RunError) as caught:
        training.train(TrainOptions(recipe_file, run.path, overrides=[override]), console)
    assert str(caught.value).startswith(f"{run.path}: was begun with another recipe ({changed}")
    assert str(caught.value).endswith("or use --run to begin a new run")
    assert run.recipe.read_text() == before


def test_a_run_may_go_on_longer_and_be_scored_otherwise(
    run: RunFolder, recipe_file: Path, console: Console
) -> None:
    """With the run locked by us, a start that is not refused gets as far as the lock."""
    overrides = [
        "name=other",
        "train.steps=",
        "train.epochs=5",
        "train.workers=2",
        "train.log_every=3",
        "evaluate.every=7",
        "checkpoint.keep=2",
        "early_stop=[{metric='loss'}]",
        "track.tensorboard=false",
    ]
    with run.lock(), pytest.raises(RunError, match="is being trained already"):
        training.train(TrainOptions(recipe_file, run.path, overrides=overrides), console)


def test_a_run_does_not_go_on_with_files_that_have_changed(
    run: RunFolder, recipe_file: Path, console: Console
) -> None:
    data = run.data.read_text()
    with (
        open(recipe_file.parent / "train.en", "a") as source,
        open(recipe_file.parent / "train.de", "a") as target,
    ):
        source.write("One more.\n")
        target.write("Noch einer.\n")
    with pytest.raises(
        RunError, match="was begun with other data, the files that the recipe names have changed"
    ):
        training.train(TrainOptions(recipe_file, run.path), console)
    assert run.data.read_text() == data
    assert not run.is_locked()


@pytest.mark.parametrize("address", ["gs://bucket/model_dirs/x", "s3://bucket/x"])
def test_a_run_at_an_address_is_refused_before_anything_is_made(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"--run {address}: a run's folder is on this machine; .* --set checkpoint.mirror={address} "
    with pytest.raises(RunError, match=expected) as caught:
        training.open_run(TrainOptions(recipe_file, Path(address)))
    assert caught.value.exit_status == 2
    with pytest.raises(RunError, match=expected):
        training.run_folder(recipe_file, Path(address), [])
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_wrong_init_from_is_told_before_anything_is_made(
    recipe_file: Path, console: Console, tmp_path: Path
) -> None:
    options = TrainOptions(recipe_file, tmp_path / "new", overrides=["train.init_from=nowhere"])
    with pytest.raises(RunError, match="nowhere: there is no run here"):
        training.train(options, console)
    assert not (tmp_path / "new").exists()


def test_starting_from_a_run_without_a_best_checkpoint_is_told_before_anything_is_made(
    recipe_file: Path, console: Console, run: RunFolder, tmp_path: Path
) -> None:
    run.recipe.write_text(recipe_file.read_text())
    options = TrainOptions(recipe_file, tmp_path / "new", overrides=[f"train.init_from={run.path}"])
    with pytest.raises(UserError, match=r"train\.init_from = .*no complete checkpoint"):
        training.train(options, console)
    assert not (tmp_path / "new").exists()


def test_a_pause_on_the_way_is_said_to_be_one_and_has_no_test_score(
    run: RunFolder, recipe_file: Path
) -> None:
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        records.write("step", step=3, loss=1.0)
    write_json(run.score_file("test"), {"split": "test", "step": 2, "bleu": 20.0})
    recipe = load_recipe(recipe_file, ["train.steps=9", "train.stop_at=3"])
    paused = training.summarise(run, recipe, RunOutcome("finished"))
    assert paused["paused"]
    assert "test" not in paused
    assert format_training(paused).endswith("saved at step 3; the same command without train.stop_at resumes")
    whole = training.summarise(run, load_recipe(recipe_file, ["train.steps=3"]), RunOutcome("finished"))
    assert not whole["paused"]
    assert whole["test"]["bleu"] == 20.0


def test_a_run_folder_holds_what_workers_need_and_every_start(
    run: RunFolder, recipe_file: Path, console: Console
) -> None:
    recipe = load_recipe(recipe_file)
    prepared = find_data(recipe, recipe_file.parent)
    assert isinstance(prepared, Prepared)
    write_run(run, recipe, prepared)
    assert load_recipe(run.recipe) == recipe
    assert json.loads(run.data.read_text()) == {"folder": str(prepared.folder), "key": prepared.key}
    assert run.tokeniser.read_bytes() == prepared.tokeniser_path.read_bytes()
    starts = json.loads(run.provenance.read_text())
    assert len(starts) == 2
    assert all("command" in start for start in starts)


def test_the_last_step_comes_from_the_records_of_worker_0(run: RunFolder) -> None:
    assert last_step(run) == 0
    writer = RecordWriter(run.worker_records(0))
    for record in (
        {"kind": "step", "step": 7},
        {"kind": "checkpoint", "step": 9},
        {"kind": "event", "message": "x"},
    ):
        writer.write(**record)
    writer.close()
    assert last_step(run) == 7
    assert last_step(run, "checkpoint") == 9


def test_test_scores_are_there_once_the_run_was_scored(run: RunFolder) -> None:
    assert training.test_scores(run) == {}
    run.score_file("test").write_text('{"bleu": 1.5}')
    assert training.test_scores(run) == {"test": {"bleu": 1.5}}


def test_a_run_is_removed_whole_but_never_while_it_is_trained(run: RunFolder) -> None:
    with run.lock(), pytest.raises(RunError, match="is being trained; `echelon stop"):
        remove_run(run)
    assert run.recipe.exists()
    remove_run(run)
    assert list(run.path.parent.iterdir()) == []
    with pytest.raises(RunError, match="there is no run here"):
        remove_run(run)


def test_preparation_says_its_stages_and_finds_its_data_again(
    recipe_file: Path, cache: Path, tmp_path: Path
) -> None:
    recipe, output = load_recipe(recipe_file), io.StringIO()
    assert find_data(recipe, recipe_file.parent) is None
    prepared = prepare_data(recipe, recipe_file.parent, Console(file=output))
    assert "preparing: " in output.getvalue()
    assert prepared.folder.is_relative_to(cache)
    found = find_data(recipe, recipe_file.parent)
    assert found is not None
    assert found.key == prepared.key
