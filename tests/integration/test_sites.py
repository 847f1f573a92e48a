"""Inside mpirun, mpiexec and torchrun, real ones: every process becomes a worker, and the result is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.integration.runs import (
    ENDLESS,
    SETTINGS,
    Undisturbed,
    assert_same_end,
    length_beyond,
    signal_worker,
    train_words,
    under_way,
    wait_for_step,
    worker_processes,
)

# As root, and with more processes than cores, Open MPI wants to be asked nicely. By default it kills processes a second
# after it is told to stop, which a busy machine may need for saving.
PATIENCE = ["--mca", "odls_base_sigkill_timeout", "10"]
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *PATIENCE, "-n", "2"]
MPICH = ["mpiexec.mpich", "-n", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", "--"]
LAUNCHERS = {"Open MPI": OPEN_MPI, "MPICH": MPICH, "torchrun": TORCHRUN}
EVERY_LAUNCHER = pytest.mark.parametrize("launcher", LAUNCHERS)


def program(launcher: str) -> list[str]:
    """The launcher's command, or a skip that says what is missing."""
    command = LAUNCHERS[launcher]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {launcher} here: there is no {command[0]}")
    return command


def train_under(
    launcher: str, recipe: Path, run: RunFolder, *settings: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [*program(launcher), *train_words(recipe, run, *settings), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert result.returncode == status, result.stdout + result.stderr
    return result


def training_under(
    launcher: str, recipe: Path, run: RunFolder, *settings: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return under_way([*program(launcher), *train_words(recipe, run, *settings), "--json"], run)


def document(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """stdout, which is one document, of process 0 alone."""
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_mpirun_trains_the_same_weights_and_only_process_0_speaks(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    alone = undisturbed(workers=2)
    run = RunFolder(tmp_path / "sites")
    result = train_under("Open MPI", toy_recipe, run)
    assert_same_end(alone, run)
    assert document(result)["finished"] is True
    assert document(result)["test"] == json.loads(alone.score_file("test").read_text())
    assert result.stderr.count("training starts: 30 steps, 2 workers") == 1
    assert not run.rendezvous.exists(), "nothing is left of how they met"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("Open MPI", "torchrun"), ("MPICH", "Open MPI"), ("torchrun", "MPICH")]
)
def test_a_run_that_one_launcher_ends_goes_on_under_another(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path, first: str, second: str
) -> None:
    program(second)
    run = RunFolder(tmp_path / "interrupted")
    with training_under(first, toy_recipe, run, *SETTINGS, ENDLESS) as process:
        wait_for_step(run, 13)
        process.terminate()
        output, _ = process.communicate(timeout=60)
        # mpirun and torchrun that are told to stop return 1, whatever their processes return.
        assert process.returncode == (75 if first == "MPICH" else 1)
    saved = choose_checkpoint(run.checkpoints, "last").step
    assert '"finished": false' in output
    assert [r["outcome"] for r in read_records(run.worker_records(1)) if r["kind"] == "end"] == [
        "interrupted"
    ]
    length = length_beyond(saved)
    train_under(second, toy_recipe, run, *SETTINGS, length)
    assert_same_end(undisturbed(*SETTINGS, length, workers=2), run)


@pytest.mark.slow
@EVERY_LAUNCHER
def test_a_worker_that_is_killed_ends_all_with_its_name(
    toy_recipe: Path, tmp_path: Path, launcher: str
) -> None:
    run = RunFolder(tmp_path / "killed")
    with training_under(launcher, toy_recipe, run, ENDLESS) as process:
        wait_for_step(run, 5)
        signal_worker(run, 1, signal.SIGKILL)
        output, messages = process.communicate(timeout=60)
    assert process.returncode == 1
    assert messages.count("error: worker 1 on ") == 1
    assert "failed (signal 9); its log is " in messages
    assert "worker 1 on" in json.loads(output)["error"]
    assert worker_processes(run) == []


@pytest.mark.slow
@EVERY_LAUNCHER
def test_a_mistake_that_process_0_finds_ends_all_with_its_message(
    toy_recipe: Path, tmp_path: Path, launcher: str
) -> None:
    (toy_recipe.parent / "train.en").unlink()
    run = RunFolder(tmp_path / "mistake")
    status = 1 if launcher == "torchrun" else 2
    result = train_under(launcher, toy_recipe, run, status=status)
    assert result.stderr.count("error: train.en does not exist") == 1
    assert "train.en does not exist" in document(result)["error"]
    assert not run.path.exists(), "no folder is left behind"


@pytest.mark.slow
def test_sigterm_before_training_began_is_an_interruption(toy_recipe: Path, tmp_path: Path) -> None:
    """As SLURM's, while data are prepared: the job must queue again."""
    environment = {
        **os.environ,
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "alone",
    }
    run = RunFolder(tmp_path / "waiting")
    command = train_words(toy_recipe, run)
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"waiting for process 1" in line:
                process.terminate()
        assert process.wait(60) == 75
    assert not run.rendezvous.exists()


@pytest.mark.slow
def test_dry_run_says_what_each_process_would_become(toy_recipe: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "dry")
    command = [*program("Open MPI"), *train_words(toy_recipe, run), "--json", "--dry-run"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    decoder, text, plans = json.JSONDecoder(), result.stdout.lstrip(), []
    while text:
        plan, end = decoder.raw_decode(text)
        plans.append(plan)
        text = text[end:].lstrip()
    assert {plan["hosts"][0]["host"] for plan in plans} == {
        f"process {rank} of 2 by mpirun" for rank in (0, 1)
    }
    assert {plan["hosts"][0]["workers"][0]["environment"]["RANK"] for plan in plans} == {"0", "1"}
    assert not run.path.exists()
