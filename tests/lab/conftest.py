"""Real hosts in namespaces, where this machine can have them; a skip that says why not, elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from echelon.errors import UserError
from echelon.lab.cgroup import find_cpu_controller
from echelon.lab.lab import Lab
from echelon.lab.plan import LabSpec
from echelon.lab.requirements import check_machine

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
