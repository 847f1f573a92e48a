"""How a run stands, from what is in its folder; and that every reader of a run says the same."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from echelon.commands.runs import summarise
from echelon.commands.status import get_status
from echelon.explain.history import read_history
from echelon.monitor.records import RecordWriter, read_records, skim_records
from echelon.monitor.run_state import read_state
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from tests.sample_recipe import sample_recipe

START = {"kind": "start", "step": 0, "steps": 100, "workers": 1}
STEP = {"kind": "step", "step": 40, "loss": 1.0, "seconds": 0.5}
FINISHED = {"kind": "end", "step": 100, "outcome": "finished"}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe()))
    return run


def write(path: Path, *records: dict[str, Any]) -> None:
    with contextlib.closing(RecordWriter(path)) as writer:
        for record in records:
            writer.write(**record)


def train_elsewhere(run: RunFolder) -> None:
    """As a launcher leaves it whose two hosts have run folders of their own."""
    write_json(run.hosts, {"entries": [{"sees_our_folder": False}, {"sees_our_folder": False}]})


def grow_old(run: RunFolder) -> None:
    """Let an hour pass since anything came."""
    for file in run.records.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)


def test_a_run_that_has_just_been_killed_is_interrupted_to_every_reader(run: RunFolder) -> None:
    write(run.worker_records(0), START, STEP)
    assert summarise(run).state == read_history(run).outcome == get_status(run).run.state == "interrupted"
    with run.lock():
        assert summarise(run).state == read_history(run).outcome == get_status(run).run.state == "training"


def test_a_run_on_hosts_with_own_folders_is_not_known_once_nothing_comes_back(run: RunFolder) -> None:
    train_elsewhere(run)
    write(run.worker_records(0), START, STEP)
    write(run.agent_records(0), {"kind": "start", "host": "host1"})
    assert summarise(run).state == read_history(run).outcome == "training", "somebody brings it back"
    grow_old(run)
    assert summarise(run).state == read_history(run).outcome == "unknown"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("interrupted", "interrupted"),
        ("failed", "interrupted"),
        ("finished", "finished"),
        ("alone", "unknown"),
    ],
)
def test_what_the_agents_said_of_the_end_counts_for_hosts_with_own_folders(
    run: RunFolder, outcome: str, state: str
) -> None:
    train_elsewhere(run)
    write(run.worker_records(0), START, STEP)
    for host in range(2):
        write(run.agent_records(host), {"kind": "start", "host": f"host{host}"})
    write(run.agent_records(1), {"kind": "outcome", "outcome": outcome, "message": ""})
    grow_old(run)
    assert read_state(run).name == state


def test_a_start_after_the_end_counts_more(run: RunFolder) -> None:
    train_elsewhere(run)
    write(run.worker_records(0), START, STEP)
    write(run.agent_records(0), {"kind": "outcome", "outcome": "interrupted", "time": 100.0})
    write(run.agent_records(1), {"kind": "start", "time": 200.0})
    grow_old(run)
    assert read_state(run).name == "unknown"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": [1]}', '{"entries": {}}', '{"entries": null}'])
def test_hosts_that_cannot_be_read_are_none(run: RunFolder, text: str) -> None:
    run.hosts.write_text(text)
    write(run.worker_records(0), START, STEP)
    assert read_state(run).name == "interrupted"


def test_a_run_stands_at_its_last_step_or_where_it_went_back_to(run: RunFolder) -> None:
    write(run.worker_records(0), START, STEP | {"step": 39}, STEP)
    state = read_state(run)
    assert (state.step, state.steps) == (40, 100)
    write(run.worker_records(0), START | {"step": 20})
    assert read_state(run).step == 20
    write(run.worker_records(0), FINISHED)
    assert read_state(run).name == "finished"


def test_skimming_leaves_out_steps_before_other_steps(run: RunFolder) -> None:
    steps = [STEP | {"step": step} for step in range(1, 6)]
    write(run.worker_records(0), START, *steps[:3], {"kind": "valid", "step": 3}, *steps[3:], START)
    with open(run.worker_records(0), "a") as file:
        file.write('{"kind": "step", "st')
    kinds = [(record["kind"], record["step"]) for record in skim_records(run.worker_records(0))]
    assert kinds == [("start", 0), ("step", 3), ("valid", 3), ("step", 5), ("start", 0)]
    assert read_state(run) == read_state(run, read_records(run.worker_records(0)))
