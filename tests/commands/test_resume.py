"""Resuming a run: as it was begun, or longer because the user says so."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from echelon.agent.inquiry import HostAnswer
from echelon.agent.spec import HostSpec
from echelon.cluster.host_session import HostSession
from echelon.cluster.roster import write_roster
from echelon.commands.prepare import prepare_data
from echelon.commands.resume import length_note, load_own_recipe
from echelon.commands.run_setup import write_run
from echelon.commands.status import get_status
from echelon.commands.stop import holder
from echelon.commands.training import TrainOptions, begin, open_run, train
from echelon.errors import RunError
from echelon.launch.ssh import Remote
from echelon.monitor.records import RecordWriter
from echelon.monitor.run_state import RunState
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder
from tests.sample_corpus import write_corpus


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def run(tmp_path: Path, recipe_file: Path, console: Console) -> RunFolder:
    """A run of 300 steps that has been trained up to step 20, with a pause at step 15 behind it."""
    folder = RunFolder(tmp_path / "runs" / "sample")
    folder.create()
    recipe = load_recipe(recipe_file, ["train.steps=300", "train.stop_at=15"])
    write_run(folder, recipe, prepare_data(recipe, recipe_file.parent, console))
    records = RecordWriter(folder.worker_records(0))
    records.write("step", step=20)
    records.close()
    return folder


def test_a_forgotten_length_is_asked_about(recipe_file: Path, run: RunFolder) -> None:
    steps = load_recipe(recipe_file).train.steps
    with pytest.raises(RunError) as caught:
        open_run(TrainOptions(recipe_file, run.path))
    assert str(caught.value) == (
        f"{run.path}: was begun with 300 steps and the recipe now says {steps} steps; "
        f"give --as-before to keep 300 steps, or --steps {steps} to change it"
    )


def test_a_length_that_is_asked_for_is_taken(recipe_file: Path, run: RunFolder) -> None:
    recipe, _ = open_run(TrainOptions(recipe_file, run.path, overrides=["train.steps=400"]))
    assert recipe.train.steps == 400


def test_a_run_in_which_no_step_was_made_may_get_another_length(recipe_file: Path, run: RunFolder) -> None:
    run.worker_records(0).unlink()
    recipe, _ = open_run(TrainOptions(recipe_file, run.path))
    assert recipe.train.steps == load_recipe(recipe_file).train.steps


def test_as_before_keeps_what_the_run_was_begun_with(recipe_file: Path, run: RunFolder) -> None:
    recipe, _ = open_run(TrainOptions(recipe_file, run.path, as_before=True))
    assert recipe.train.steps == 300


def test_a_run_is_resumed_without_its_recipe(recipe_file: Path, run: RunFolder, console: Console) -> None:
    for file in recipe_file.parent.iterdir():
        file.unlink()
    with begin(TrainOptions(run.recipe, run.path), console) as begun:
        assert begun.recipe.train.steps == 300
        assert begun.recipe.train.stop_at is None, "the pause is over"


def test_a_run_whose_data_is_gone_asks_for_its_recipe(
    run: RunFolder, console: Console, tmp_path: Path
) -> None:
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    with (
        pytest.raises(RunError, match=r"give its recipe.*: echelon train RECIPE --run"),
        begin(TrainOptions(run.recipe, run.path), console),
    ):
        pass


@pytest.fixture
def hosts(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run was trained on two hosts, neither of which can be reached now; their SSH configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = tmp_path / "ssh_config"
    config.write_text("Host gpu*\n  HostName 127.0.0.1\n  Port 1\n")
    specs = [HostSpec(f"gpu{number}", "10.0.0.1", "eth0", 2) for number in (1, 2)]
    sessions = [HostSession(0, Remote(spec.name, config), ("/opt/python",), spec, False) for spec in specs]
    write_roster(run, sessions, "desk", config)
    return config


def test_a_run_of_hosts_is_not_resumed_here_unasked(run: RunFolder, hosts: Path, console: Console) -> None:
    """It was trained here by one worker, and nobody was told."""
    with pytest.raises(RunError) as told:
        train(TrainOptions(run.recipe, run.path), console)
    assert f"`echelon train {run.path} --hosts gpu1:2,gpu2:2 --ssh-config {hosts}` resumes it" in str(
        told.value
    )
    assert run.hosts.exists()
    run.hosts.write_text(run.hosts.read_text() + " ")
    with pytest.raises(RunError, match="--hosts HOSTS` resumes it") as told:
        train(TrainOptions(run.recipe, run.path), console)
    assert "gpu1" not in str(told.value), "another's hosts go into no command"


@pytest.mark.usefixtures("hosts")
def test_a_run_that_is_resumed_here_is_seen_here(run: RunFolder, console: Console) -> None:
    """`status` called it interrupted, and `stop` said that nobody trained it."""
    with begin(TrainOptions(run.recipe, run.path, workers=parse_workers(2)), console):
        status = get_status(run)
        assert (status.run.state, status.hosts) == ("training", [])
        assert holder(run) == os.getpid()


def test_a_run_that_its_hosts_train_is_not_taken_from_them(
    run: RunFolder, hosts: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RunState("training", 7, 300, 1.0)
    busy = HostAnswer(True, True, "launch", [], "", {}, state, 5, 0.0)
    monkeypatch.setattr(HostSession, "ask", lambda *_, **__: busy)
    options = TrainOptions(run.recipe, run.path, workers=parse_workers(2))
    with pytest.raises(RunError, match="is being trained on its hosts"), begin(options, console):
        pass
    assert run.hosts.exists()


def test_a_pause_that_is_still_to_come_is_kept(run: RunFolder) -> None:
    assert load_own_recipe(run, ["train.stop_at=25"]).train.stop_at == 25


def test_a_changed_length_is_told_with_what_it_does_to_the_rate(recipe_file: Path, console: Console) -> None:
    one_cycle = "schedule={kind='one_cycle', learning_rate=0.1}"
    before, now = (load_recipe(recipe_file, [one_cycle, f"train.steps={steps}"]) for steps in (20, 40))
    prepared = prepare_data(before, recipe_file.parent, console)
    note = length_note(before, now, prepared, 20)
    assert note is not None
    assert note.startswith(
        "note: the run's length changes from 20 to 40 steps, and the learning rate at step 21 from "
    )
    fixed = [
        load_recipe(recipe_file, ["schedule={kind='fixed', learning_rate=0.1}", f"train.steps={n}"])
        for n in (20, 40)
    ]
    assert (
        length_note(fixed[0], fixed[1], prepared, 20) == "note: the run's length changes from 20 to 40 steps"
    )
    assert length_note(before, before, prepared, 20) is None
    assert length_note(before, now, prepared, 0) is None, "nothing was trained yet"


@pytest.mark.parametrize("workers", ["2", "1:3"])
def test_a_run_is_resumed_with_the_workers_it_was_begun_with(
    recipe_file: Path, tmp_path: Path, console: Console, workers: str
) -> None:
    folder = tmp_path / "runs" / "three"
    with begin(TrainOptions(recipe_file, folder, parse_workers(workers)), console) as begun:
        run = begun.run
    for options in (TrainOptions(run.recipe, folder), TrainOptions(recipe_file, folder, as_before=True)):
        recipe, _ = open_run(options)
        assert parse_workers(recipe.train.workers) == parse_workers(workers)
    recipe, _ = open_run(TrainOptions(run.recipe, folder, parse_workers("4")))
    assert recipe.train.workers == 4
    recipe, _ = open_run(TrainOptions(recipe_file, folder))
    assert recipe.train.workers == load_recipe(recipe_file).train.workers, "another recipe says it anew"
