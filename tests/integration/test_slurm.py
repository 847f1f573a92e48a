"""`train --launcher slurm` on a real SLURM, of one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import SETTINGS, Echelon, Undisturbed, assert_same_end, wait_for_step
from tests.slurm import Slurm, open_slurm

pytestmark = pytest.mark.slow
Submit = Callable[..., str]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with open_slurm() as slurm:
        yield slurm


@pytest.fixture
def submit(slurm: Slurm, echelon: Echelon, toy_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits the toy recipe for two tasks; the job's number."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)

    def submit(run: RunFolder, *settings: str) -> str:
        sets = [word for setting in settings for word in ("--set", setting)]
        words = ["--launcher", "slurm", "--workers", "2", "--time", "30", "--partition", "main"]
        words += ["--sbatch-option", "overcommit"]  # two tasks, also where there is one core
        result = echelon("train", toy_recipe, "--run", run.path, *words, *sets, "--json")
        return str(json.loads(result.stdout)["job"])

    return submit


def starts(run: RunFolder) -> list[Any]:
    """At which steps training was begun or went on."""
    return [record["step"] for record in read_records(run.worker_records(0)) if record["kind"] == "start"]


def test_a_job_trains_the_same_weights(
    slurm: Slurm, submit: Submit, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    alone = undisturbed(workers=2)
    run = RunFolder(tmp_path / "slurm")
    job = submit(run)
    assert "ExitCode=0:0" in slurm.wait_for_state(job, "COMPLETED")
    assert_same_end(alone, run)
    log = (run.path / f"slurm-{job}.log").read_text()
    assert log.count("training starts: 30 steps, 2 workers") == 1
    assert run.sbatch.is_file()


def test_a_job_that_is_preempted_queues_again_and_ends_with_the_same_bits(
    slurm: Slurm, submit: Submit, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Once by the signal that SLURM sends before time is over, once by an administrator's requeue."""
    settings = (*SETTINGS, "train.steps=400", "evaluate.every=5000", "checkpoint.every=100")
    whole = undisturbed(*settings, workers=2)
    run = RunFolder(tmp_path / "preempted")
    job = submit(run, *settings)
    wait_for_step(run, 50)
    slurm.run("scancel", "--signal=TERM", job)  # to the tasks, as --signal=TERM@120 does
    slurm.start_now(job)
    while len(starts(run)) < 2:
        slurm.wait_for_state(job, "RUNNING")
    wait_for_step(run, starts(run)[1] + 20)
    slurm.run("scontrol", "requeue", job)
    slurm.start_now(job)
    state = slurm.wait_for_state(job, "COMPLETED")
    assert "Restarts=2" in state
    first, second, third = starts(run)
    assert 0 == first < second < third, "it went on where it had stopped"
    assert third < 400, "and not only at the end"
    assert_same_end(whole, run)


def test_a_mistake_is_not_tried_again(slurm: Slurm, submit: Submit, toy_recipe: Path, tmp_path: Path) -> None:
    (toy_recipe.parent / "train.en").unlink()
    run = RunFolder(tmp_path / "mistake")
    job = submit(run)
    assert "ExitCode=2:0" in slurm.wait_for_state(job, "FAILED")
    assert (run.path / f"slurm-{job}.log").read_text().count("train.en does not exist") == 1
