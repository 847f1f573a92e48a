"""The file that sbatch is given, whole, and how it is handed over; tests/integration/test_slurm.py runs it for real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from echelon.errors import EchelonError, UserError
from echelon.launch.slurm import SbatchSpec, render_sbatch, submit
from echelon.runfolder import RunFolder

SPEC = SbatchSpec(
    name="wmt",
    command=["/venv/python", "-m", "echelon", "train", "/my recipes/wmt.toml", "--set", "seed=1"],
    folder=Path("/home/me/my work"),
    output="/runs/wmt/slurm-%j.log",
    nodes=4,
    workers=8,
    resources=["gpus-per-node=8", "partition=gpu", "time=2-00:00:00", "account=nlp"],
    options=["cpus-per-task=6", "--exclusive", "comment=two words"],
    retries=2,
)
GOLDEN = """\
#!/bin/bash
# Made by `echelon train --launcher slurm`. SIGTERM, before time is over or when another job takes the place, makes
# training save and leave with status 75; then the job queues again and resumes from there.
#SBATCH --job-name=wmt
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=2-00:00:00
#SBATCH --account=nlp
#SBATCH --output=/runs/wmt/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --cpus-per-task=6
#SBATCH --exclusive
#SBATCH --comment="two words"

cd '/home/me/my work' || exit 2
trap : TERM  # the tasks are told as well; wait for them
# srun does not take this over from sbatch by itself.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi

for attempt in 0 1 2; do
    srun --mpi=none --kill-on-bad-exit=0 --wait=60 /venv/python -m echelon train '/my recipes/wmt.toml' --set seed=1
    status=$?
    case $status in
        0 | 2) exit $status ;;  # done, or nothing that trying again could help
        75) scontrol requeue "$SLURM_JOB_ID"; exit $status ;;
    esac
done
exit $status
"""


def test_the_file_is_exactly_this() -> None:
    assert render_sbatch(SPEC) == GOLDEN


def test_what_was_not_asked_for_is_left_to_the_site() -> None:
    text = render_sbatch(SbatchSpec("toy", ["true"], Path("/tmp"), "/tmp/log"))
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=toy",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --output=/tmp/log",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=TERM@120",
        "#SBATCH --requeue",
    ]
    assert "for attempt in 0; do" in text


@pytest.mark.parametrize("option", ['comment="x"', "comment=a\n#SBATCH --uid=0", "comment=\\", "comment='"])
def test_an_option_that_could_become_another_line_is_refused(option: str) -> None:
    with pytest.raises(UserError, match="cannot stand in an sbatch file"):
        render_sbatch(SbatchSpec("toy", ["true"], Path("/tmp"), "/tmp/log", options=[option]))


PROGRAMS = {"srun": 'echo "$*" >> calls; exit "$(cat status)"', "scontrol": 'echo "scontrol $*" >> calls'}


@pytest.mark.parametrize(
    ("status", "tries", "requeued"),
    [(0, 1, False), (75, 1, True), (2, 1, False), (1, 3, False), (137, 3, False)],
)
def test_the_script_is_done_queues_again_or_tries_again(
    tmp_path: Path, status: int, tries: int, requeued: bool
) -> None:
    """The real bash, with srun and scontrol that only note that they were called."""
    for name, body in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "status").write_text(str(status))
    script = render_sbatch(SbatchSpec("toy", ["train"], tmp_path, "log", retries=2))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    result = subprocess.run(["bash", "-c", script], env=environment, check=False)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert result.returncode == status
    assert calls.count("--mpi=none --kill-on-bad-exit=0 --wait=60 train") == tries
    assert ("scontrol requeue 17" in calls) == requeued


def fake_sbatch(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sbatch").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_file_is_kept_and_the_jobs_number_told(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sbatch(tmp_path, 'test "$1" = --parsable && grep -q train "$2" && echo "4711;cluster"', monkeypatch)
    assert submit(render_sbatch(SPEC), run) == "4711"
    assert run.sbatch.read_text() == GOLDEN


def test_what_sbatch_says_is_told(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sbatch(tmp_path, "echo invalid partition specified: gpu >&2; exit 1", monkeypatch)
    with pytest.raises(EchelonError, match=r"job\.sbatch failed: invalid partition specified: gpu"):
        submit("text", run)


def test_a_machine_without_slurm_is_told_where_the_file_is(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"there is no sbatch here; the file is .*job\.sbatch"):
        submit("text", run)
