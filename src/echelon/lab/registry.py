"""Which labs there are on this machine: the plan of each, written before any part of it is made.

/var/lib/echelon/labs/NAME/plan.json; a lock on the folder NAME keeps two changes of one lab apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from echelon.errors import UserError
from echelon.lab.cgroup import CpuController
from echelon.lab.layout import LabPlan, LabSpec, host_names
from echelon.runfolder import read_json, write_json

LABS = Path("/var/lib/echelon/labs")
NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps them."""
_SUBNETS = 256


def register(spec: LabSpec, cpus: float, controller: CpuController) -> LabPlan:
    """Write down what is about to be made; UserError if it exists already or would conflict with something else."""
    try:
        LABS.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{LABS}: labs are written down there, and it cannot be made: {error.strerror}"
        ) from None
    with _locked(LABS):
        plans = read_plans()
        for plan in plans:
            _check_apart(plan, spec)
        folder = spec.where
        _check_free(folder)
        taken = {plan.subnet for plan in plans}
        free = next((number for number in range(_SUBNETS) if number not in taken), None)
        if free is None:
            raise UserError(f"{_SUBNETS} labs are up, and there is no address for another; remove some")
        plan = LabPlan(
            name=spec.name,
            folder=folder,
            cpus=cpus,
            subnet=free,
            rates=dict.fromkeys(host_names(spec.hosts), spec.rate),
            made_folders=[path for path in [*reversed(folder.parents), folder] if not path.exists()],
        )
        if not plan.shared.exists():
            plan.made_folders.append(plan.shared)
        _check_names(plan, controller)
        (LABS / spec.name).mkdir(exist_ok=True)
        save(plan)
        return plan


def _check_apart(plan: LabPlan, spec: LabSpec) -> None:
    if plan.name == spec.name:
        ours = f", or remove this one with `echelon lab down --name {plan.name}`" * _is_here(
            plan, spec.where.parent
        )
        raise UserError(f"a lab {plan.name!r} is up already, in {plan.folder}; choose another --name{ours}")
    if plan.folder.is_relative_to(spec.where) or spec.where.is_relative_to(plan.folder):
        raise UserError(f"{spec.where}: the lab {plan.name!r} is in {plan.folder}; choose another --folder")


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another --folder")
    others = (
        sorted(path.name for path in folder.iterdir() if path.name != "shared") if folder.exists() else []
    )
    if others:
        raise UserError(
            f"{folder}: holds {others[0]!r}, and a lab's folder may hold nothing but `shared` before; "
            "choose another --folder"
        )


def _check_names(plan: LabPlan, controller: CpuController) -> None:
    """What has one of the plan's names already is not ours, and would be removed with the lab."""
    for name in (plan.switch, *(host.namespace for host in plan.hosts)):
        kind = (
            "network namespace"
            if namespace_exists(name)
            else "control group"
            if controller.folder(name).exists()
            else None
        )
        if kind:
            raise UserError(f"there is a {kind} {name} that no lab here has made; choose another --name")


def namespace_exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def save(plan: LabPlan) -> None:
    """Replace a registered lab's plan."""
    values = dataclasses.asdict(plan)
    values |= {"folder": str(plan.folder), "made_folders": [str(path) for path in plan.made_folders]}
    write_json(LABS / plan.name / "plan.json", values)


def unregister(plan: LabPlan) -> None:
    """Forget a lab once nothing of it is left."""
    with _locked(LABS):
        shutil.rmtree(LABS / plan.name)


def read_plans() -> list[LabPlan]:
    """The plans of all labs, by name."""
    found = (find_plan(folder.name) for folder in sorted(LABS.glob("*")))
    return [plan for plan in found if plan]


def find_plan(name: str) -> LabPlan | None:
    """The plan of the lab of that name; None if there is none."""
    file = LABS / name / "plan.json"
    try:
        values = read_json(file)
        values |= {"folder": Path(values["folder"]), "made_folders": [*map(Path, values["made_folders"])]}
        return LabPlan(**values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: is damaged ({error}); put it right by hand") from None


def choose_lab(name: str | None, here: Path) -> str:
    """The lab that is meant: the one of that name, otherwise the one whose folder is `here`.

    A lab elsewhere may be another user's: it is only chosen by name.
    """
    if name is not None:
        return name
    plans = read_plans()
    names = [plan.name for plan in plans if _is_here(plan, here)]
    if len(names) == 1 or "lab" in names:
        return names[0] if len(names) == 1 else "lab"
    if names:
        raise UserError(f"there are {len(names)} labs here; choose one with --name: {', '.join(names)}")
    if plans:
        others = ", ".join(f"{plan.name} in {plan.folder}" for plan in plans)
        raise UserError(f"no lab is up in {here}; --name chooses one that is up elsewhere: {others}")
    return "lab"


def _is_here(plan: LabPlan, here: Path) -> bool:
    return plan.folder.is_relative_to(here) or here.is_relative_to(plan.folder)


@contextlib.contextmanager
def registered(name: str) -> Iterator[tuple[LabPlan | None, int]]:
    """A lab's plan, locked against changes by others; None if there is no such lab.

    Also yields the lock's descriptor: programs that inherit it keep the lock until they end, even if we are killed.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(_locked(LABS / name))
        except FileNotFoundError:
            lock = None
        yield (None, -1) if lock is None else (find_plan(name), lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    while True:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):  # not one that was removed meanwhile
                yield descriptor
                return
        finally:
            os.close(descriptor)
