"""Old commands as users start them: `python -m echelon.run` and others."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from echelon.cli.old_command import main
from echelon.errors import DataError
from echelon.migrate import cifar10_command, imagenet_command
from echelon.migrate.old_command import Modern
from echelon.migrate.openseq2seq import command as openseq2seq_command
from echelon.runfolder import RunFolder
from tests.data.images.pictures import write_cifar
from tests.small_run import make_small_run

RECIPE = Path(__file__).parents[2] / "recipes" / "demo.toml"


def start(
    module: str, *arguments: object, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*(before or []), sys.executable, "-m", f"echelon.{module}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def test_a_line_that_cannot_be_read_is_the_user_s_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def translate(words: list[str]) -> Modern:
        raise DataError("x.en.gz: the compressed data ends early")

    monkeypatch.setattr(sys, "argv", ["run"])
    with pytest.raises(SystemExit) as left:
        main(translate)
    assert left.value.code == DataError.exit_status
    assert "the compressed data ends early" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("translate", "arguments"),
    [
        (cifar10_command.translate, ["--job-dir=runs/a"]),
        (imagenet_command.translate, []),
        (openseq2seq_command.translate, [f"--config_file={RECIPE}", "--logdir=runs/a"]),
        (openseq2seq_command.translate, [f"--config_file={RECIPE}", "--logdir=runs/a", "--benchmark"]),
    ],
)
def test_what_a_note_advises_can_be_added_to_the_old_command(
    translate: Callable[[list[str]], Modern], arguments: list[str]
) -> None:
    modern = translate([*arguments, "--set", "train.log_every=5", "--set=data.verify=false"])
    assert modern.words[-4:] == ["--set", "train.log_every=5", "--set", "data.verify=false"]


@pytest.mark.parametrize(
    ("module", "arguments", "command", "problem"),
    [
        (
            "cifar10_main",
            ["--data-dir={data}", "--job-dir={run}"],
            "--workers 1 --set model.preset=resnet44",
            "test_batch.bin has 0 bytes",
        ),
        (
            "imagenet_distributed",
            ["--data=/nowhere", "--run={run}"],
            "--workers 1 --set train.epochs=2.0",
            "/nowhere does not exist",
        ),
    ],
)
def test_the_modern_command_is_shown_and_run(
    tmp_path: Path, module: str, arguments: list[str], command: str, problem: str
) -> None:
    run, data = str(tmp_path / "run"), write_cifar(tmp_path / "data")
    (data / "test_batch.bin").write_bytes(b"")
    done = start(module, *(argument.format(run=run, data=data) for argument in arguments))
    assert "today this is: echelon train " in done.stderr
    assert f"--run {run} {command}" in done.stderr
    assert done.returncode == DataError.exit_status, "it is run: there are no data"
    assert problem in done.stderr


def test_variables_are_shown_and_set_for_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    environs = []

    def execve(_path: str, _words: list[str], environ: dict[str, str]) -> NoReturn:
        environs.append(environ)
        raise SystemExit

    monkeypatch.setattr(sys, "argv", ["run"])
    monkeypatch.setattr(os, "execve", execve)
    modern = Modern(["train", "x"], environ={"CUDA_VISIBLE_DEVICES": "", "OTHER": "a b"})
    with pytest.raises(SystemExit):
        main(lambda words: modern)
    assert environs[0] == {**os.environ, **modern.environ}
    assert str(modern) == "CUDA_VISIBLE_DEVICES= OTHER='a b' echelon train x"


def test_the_printed_command_of_inference_does_it_by_itself(config: Path, tmp_path: Path) -> None:
    make_small_run(tmp_path / "run")
    output = tmp_path / "out.txt"
    flags = [f"--config_file={config}", f"--logdir={tmp_path}/run", f"--infer_output_file={output}"]
    done = start("run", *flags, "--mode=infer")
    assert done.returncode == 0, done.stderr
    translations = output.read_text()
    assert translations.count("\n") == 20
    output.unlink()
    shown = done.stderr.partition("today this is: echelon ")[2].split("\n")[0]
    command = [sys.executable, "-m", "echelon", *shlex.split(shown)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=280)
    assert output.read_text() == translations


@pytest.mark.slow
def test_mpirun_starts_openseq2seq_s_script(config: Path, tmp_path: Path) -> None:
    """As users had it: every process of mpirun is a worker, and the first speaks."""
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("no Open MPI here: there is no mpirun.openmpi")
    before = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    flags = [f"--config_file={config}", f"--logdir={tmp_path}/run", "--use_horovod=True", "--max_steps=6"]
    done = start("run", *flags, "--eval_steps=6", "--save_checkpoint_steps=6", before=before)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("today this is: echelon train") == 1
    assert done.stderr.count("training starts: 6 steps, 2 workers") == 1
    run = RunFolder(tmp_path / "run")
    assert run.score_file("valid").exists() or list(run.checkpoints.iterdir())
    again = start("run", *flags, before=before)
    assert again.returncode != 0
    assert "give --continue_learning" in again.stderr
