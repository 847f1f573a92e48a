"""Every command of docs/launchers.md runs as it stands, on real launchers; only kubectl is an imitation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RECIPE
from tests.integration.runs import write_toy_recipe
from tests.integration.test_by_hand import free_port
from tests.slurm import Slurm, open_slurm

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "launchers.md"
NEEDED = {"mpirun": "mpirun.openmpi", "mpiexec.mpich": "mpiexec.mpich"}
"""What a command's program is called where both kinds of MPI are installed."""


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture
def page(tmp_path: Path) -> dict[str, str]:
    """A folder with the page's recipe, and the environment in which its commands run."""
    text = RECIPE.replace('"toy"', '"my"').replace("steps = 30", "steps = 6")
    write_toy_recipe(tmp_path, text).rename(tmp_path / "my.toml")
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text('#!/bin/sh\ntest "$1 $2" = "apply -f" && grep -q "kind: Job" "$3"\n')
    kubectl.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ECHELON_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        # As root, and with more processes than cores, Open MPI wants to be asked nicely.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with open_slurm() as slurm:
        yield slurm


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("program", ["mpirun", "mpiexec.mpich", "torchrun"])
def test_its_commands_for_sites_run(page: dict[str, str], tmp_path: Path, program: str) -> None:
    if shutil.which(NEEDED.get(program, program), path=page["PATH"]) is None:
        pytest.skip(f"there is no {program} here")
    (command,) = [command for command in commands() if command.startswith(f"{program} ")]
    command = command.replace("mpirun ", "mpirun.openmpi ")
    assert "runs/my: 6 steps" in run(command, tmp_path, page)


def test_its_commands_for_slurm_run(page: dict[str, str], slurm: Slurm, tmp_path: Path) -> None:
    environment = {**page, **slurm.environment}
    (srun,) = [command for command in commands() if command.startswith("srun ")]
    assert "runs/my: 6 steps" in run(srun.replace("srun ", "srun --overcommit "), tmp_path, environment)
    shutil.rmtree(tmp_path / "runs")
    dry, submit = [command for command in commands() if "--launcher slurm" in command]
    assert "#SBATCH --requeue" in run(dry, tmp_path, environment)
    said = run(f"{submit} --sbatch-option overcommit", tmp_path, environment)
    job = re.findall(r"job (\d+) is submitted", said)[0]
    slurm.wait_for_state(job, "COMPLETED")
    assert (tmp_path / "runs" / "my" / "checkpoints" / "step-00000006").is_dir()


def test_its_commands_for_kubernetes_run(page: dict[str, str], tmp_path: Path) -> None:
    for command in commands():
        if "kubernetes" in command or command.startswith("kubectl"):
            run(command, tmp_path, page)
    assert (tmp_path / "manifests" / "trainjob.yaml").is_file()


def test_its_commands_by_hand_run(page: dict[str, str], tmp_path: Path) -> None:
    typed = [command for command in commands() if "--node-rank" in command]
    assert len(typed) == 2
    here = [
        command.replace("10.0.0.1:29500", f"127.0.0.1:{free}") for free in [free_port()] for command in typed
    ]
    with subprocess.Popen(
        ["bash", "-c", here[1]], cwd=tmp_path, env=page, stderr=subprocess.DEVNULL
    ) as second:
        assert "runs/my: 6 steps" in run(here[0], tmp_path, page)
        assert second.wait(60) == 0


def test_no_command_was_forgotten() -> None:
    on_ray = [command for command in commands() if "--launcher ray" in command]  # test_ray.py runs them
    assert (len(commands()), len(on_ray)) == (12, 2)
