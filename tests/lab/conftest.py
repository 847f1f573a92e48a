"""Real hosts in namespaces, where this machine can have them; a skip that says why not, elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab.cgroup import find_cpu_controller
from echelon.lab.lab import Lab
from echelon.lab.layout import LabSpec
from echelon.lab.requirements import check_machine
from echelon.runfolder import RunFolder
from tests.integration.runs import Undisturbed, train_undisturbed, write_toy_recipe
from tests.lab.training import SETTINGS, Training, programs_left, settings_for, undo_faults

MakeLab = Callable[..., Lab]
"""make_lab(hosts=3, rate="1gbit", cpus=0.5): a lab of its own name and folder, removed after the module's tests."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def lab_machine() -> None:
    """Skips where this machine cannot have a lab."""
    try:
        check_machine()
        find_cpu_controller()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def make_lab(lab_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeLab]:
    labs: list[Lab] = []

    def make(hosts: int = 3, rate: str = "1gbit", cpus: float | None = 0.5) -> Lab:
        name = f"t{os.getpid()}n{next(_numbers)}"
        folder = tmp_path_factory.mktemp("lab") / name
        labs.append(Lab.up(LabSpec(name, folder, hosts, rate, cpus)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """Three hosts with 1 Gbit/s and half a CPU each."""
    return make_lab()


@pytest.fixture(scope="module")
def recipe(lab: Lab) -> Path:
    return write_toy_recipe(lab.shared / "toy")


@pytest.fixture(scope="module")
def environment(lab: Lab) -> Iterator[None]:
    with settings_for(lab):
        yield


@pytest.fixture(scope="session")
def train_here(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """train_here("train.steps=40", workers=2): the same recipe on this machine, trained once."""
    return train_undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="session")
def undisturbed(train_here: Undisturbed) -> RunFolder:
    """The same recipe on this machine, with as many workers as there are hosts."""
    return train_here(*SETTINGS, workers=3)


def _mostly_in(folder: str, other: str) -> pytest.MarkDecorator:
    folders = [folder, pytest.param(other, marks=pytest.mark.long)]
    return pytest.mark.parametrize("folder", folders, indirect=True)


mostly_in_a_shared_folder = _mostly_in("shared folder", "own folders")
mostly_in_own_folders = _mostly_in("own folders", "shared folder")
"""For tests with both, if one of them can wait for `make test-long`."""


@pytest.fixture(params=["shared folder", "own folders"])
def folder(request: pytest.FixtureRequest, lab: Lab) -> Path:
    return lab.shared if request.param == "shared folder" else lab.disk


@pytest.fixture
def train(lab: Lab, recipe: Path, environment: None) -> Iterator[Callable[..., Training]]:
    begun: list[Training] = []

    def start(folder: Path, *arguments: str) -> Training:
        begun.append(Training(lab, recipe, folder, *arguments))
        return begun[-1]

    yield start
    try:
        undo_faults(lab)
        for training in begun:
            training.stop()
    finally:
        for host in lab.hosts:
            if programs_left(lab, host):
                lab.kill(host)
                lab.boot(host)
