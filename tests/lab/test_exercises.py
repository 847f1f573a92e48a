"""The classic exercises' commands, in their small form, run as a reader types them; what needs real hardware is not.

In docs/tutorial-{wmt,cifar10,imagenet}.md blocks `sh` are run, all of a page in one shell; a block `sh real` is shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from echelon.errors import UserError
from echelon.lab.lab import Lab
from tests.lab.test_tutorial import _call_lab_by as call_lab_by

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def commands(page: str, kind: str = "sh") -> str:
    text = (ROOT / "docs" / f"tutorial-{page}.md").read_text()
    return "".join(re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder like the checkout; what is left running there at the end is ended."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "home").mkdir()
    try:
        yield tmp_path
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(tmp_path):
                    process.kill()
        with contextlib.suppress(UserError):
            Lab.find(lab_name()).down()


def lab_name() -> str:
    return f"x{os.getpid()}x"


def follow(page: str, folder: Path) -> str:
    """Type the page's commands; what they print."""
    python = shlex.quote(sys.executable)
    program = f'command() {{ shift; {python} -m echelon "$@"; }}'
    script = "\n".join(
        [program, call_lab_by(lab_name()), commands(page).replace("lab:lab", f"lab:{lab_name()}")]
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("ECHELON_SSH_CONFIG", "ECHELON_CACHE")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**environment, "HOME": str(folder / "home"), "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_exercise_on_wmt(lab_machine: None, folder: Path) -> None:
    output = follow("wmt", folder)
    assert re.search(r"lab/shared/runs/wmt: 60 steps, test BLEU", output)
    assert (folder / "lab" / "shared" / "hand-in.tar.gz").exists()


def test_the_exercise_on_cifar10(folder: Path) -> None:
    output = follow("cifar10", folder)
    assert re.search(r"runs/first: 60 steps, test top-1", output)
    assert "losses are those of the uninterrupted one, every step and every digit" in " ".join(output.split())
    assert "servers-asynchronous: " in output
    for kind in ("resume", "checkpoints", "exchanges", "workers"):
        for ending in ("svg", "png", "html"):
            assert (folder / "experiments" / kind / f"{kind}.{ending}").stat().st_size


def test_the_exercise_on_imagenet(lab_machine: None, folder: Path, real_data: Path) -> None:
    shutil.copy(real_data / "tiny-imagenet-sample.tar", folder / "tiny.tar")
    output = follow("imagenet", folder)
    assert re.search(r"lab/shared/runs/two: \d+ steps, ", output)


@pytest.mark.parametrize("page", ["wmt", "cifar10", "imagenet"])
def test_what_is_typed_on_real_hardware_has_verbs_and_options_that_are_there(page: str) -> None:
    for line in commands(page, "sh real").splitlines():
        words = shlex.split(line)
        if words[0] != "echelon":
            continue
        verb = words[1:3] if words[1] in ("cloud", "lab") else words[1:2]
        shown = subprocess.run(
            [sys.executable, "-m", "echelon", *verb, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for word in words:
            assert not word.startswith("--") or word in shown, f"{line}: {word}"
