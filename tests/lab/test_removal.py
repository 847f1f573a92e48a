"""`down` removes all that `up` made, also of an `up` that was killed at any moment, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from echelon.commands.lab import take_down
from echelon.errors import LabError
from echelon.lab import namespaces, registry
from echelon.lab.cgroup import find_cpu_controller
from echelon.lab.lab import Lab
from echelon.lab.layout import LabPlan, LabSpec
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("lab_machine")


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[LabSpec]:
    """Two hosts, not yet up; whatever a test leaves of them is removed."""
    name = f"t{os.getpid()}removal"
    yield LabSpec(name, tmp_path / "here" / "lab", hosts=2, cpus=0.5)
    take_down(name)


def traces(spec: LabSpec) -> list[str]:
    """Everything on this machine that has to do with a lab."""
    names = f"echelon-{spec.name}-"
    found = [*Path("/run/netns").glob(f"{names}*"), *find_cpu_controller().root.glob(f"{names}*")]
    found += [path for path in (spec.where.parent, registry.LABS / spec.name) if path.exists()]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [*map(str, found), *(line for line in mounts if spec.name in line), *processes_of(spec)]


def processes_of(spec: LabSpec) -> list[str]:
    """Processes on a host of the lab, by what is mounted there, and programs that make one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ")
            mounts = (process / "mountinfo").read_text()
        except OSError:
            continue
        if f"{spec.where}/shared" in mounts or f"echelon-{spec.name}-" in command:
            found.append(f"{process.name}: {command}")
    return found


def test_nothing_is_left(spec: LabSpec) -> None:
    lab = Lab.up(spec)
    assert len(traces(spec)) >= 3 + 2 + 2 + 4  # namespaces, cgroups, folders, processes
    lab.down()
    assert traces(spec) == []
    lab.down()
    assert not take_down(spec.name).removed


def test_the_users_work_stays(spec: LabSpec) -> None:
    spec.where.mkdir(parents=True)
    lab = Lab.up(spec)
    lab.run("host1", ["touch", f"{lab.shared}/weights", f"{lab.disk}/gone"])
    (spec.where / "notes").touch()
    assert take_down(spec.name).kept == str(lab.shared)
    assert sorted(path.name for path in spec.where.rglob("*")) == ["notes", "shared", "weights"]
    (spec.where / "notes").unlink()
    again = Lab.up(spec)
    assert again.run("host2", ["ls", str(lab.shared)]).stdout == "weights\n"


def test_sessions_end_with_the_lab(spec: LabSpec) -> None:
    lab = Lab.up(spec)
    command = ["ssh", "-F", str(lab.ssh_config), "host1", "echo ready; sleep 1000"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"ready\n"
        lab.down()
        assert session.wait(timeout=20) == 255


def test_others_are_left_alone(spec: LabSpec) -> None:
    neighbour = f"echelon-{spec.name}x-host1"
    subprocess.run(["ip", "netns", "add", neighbour], check=True)
    try:
        with subprocess.Popen(["ip", "netns", "exec", neighbour, "sleep", "1000"]) as sleeper:
            Lab.up(spec).down()
            assert Path("/run/netns", neighbour).exists()
            assert sleeper.poll() is None
            sleeper.kill()
    finally:
        subprocess.run(["ip", "netns", "delete", neighbour], check=True)


def test_the_network_of_the_machine_never_changes(spec: LabSpec) -> None:
    seen: set[str] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            shown = subprocess.run(["ip", "-oneline", "addr"], capture_output=True, text=True, check=True)
            links = subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True)
            seen.update(line.split()[1] for line in links.stdout.splitlines())
            seen.update(line.split()[3] for line in shown.stdout.splitlines())

    watcher = threading.Thread(target=watch)
    watcher.start()
    Lab.up(spec).down()
    is_over.set()
    watcher.join()
    assert "lo:" in seen
    assert [word for word in seen if word.startswith(("10.77.", "switch", "host", "veth"))] == []


def test_an_up_that_fails_leaves_nothing(spec: LabSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "connect", lambda plan, host: ["ip", "link", "set", "nonsense", "up"])
    with pytest.raises(LabError, match=r"`ip link set nonsense up` failed: Cannot find device"):
        Lab.up(spec)
    assert traces(spec) == []


def test_a_host_that_does_not_start_is_told_with_its_last_words(
    spec: LabSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echelon.lab.change.find_program", lambda name: "echo no sshd today >&2; exit 1 #")
    with pytest.raises(LabError, match=r"host\d did not start; it said last:\nno sshd today"):
        Lab.up(spec)
    assert traces(spec) == []


KILLED_UP = """
import itertools, os, signal, sys
from pathlib import Path
from echelon.lab import change
from echelon.lab.lab import Lab
from echelon.lab.layout import LabSpec

name, folder, moment, is_after = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "after"
numbers, run = itertools.count(), change.subprocess.run

def counted(command, **settings):
    is_it = next(numbers) == moment
    if is_it and is_after:
        kept = {name: settings[name] for name in ("env", "pass_fds") if name in settings}
        change.subprocess.Popen(["sh", "-c", 'sleep 0.2; exec "$@"', "sh", *command], **kept)
    if is_it:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(command, **settings)

change.subprocess.run = counted
Lab.up(LabSpec(name, folder, hosts=2, cpus=0.5))
"""
"""Kills itself at its Nth program: before it, or when it has been started and does its work a little later."""


def kill_up(spec: LabSpec, moment: int, when: str) -> int:
    command = [sys.executable, "-c", KILLED_UP, spec.name, str(spec.where), str(moment), when]
    # Not captured: hosts of a killed `up` would keep the pipe open.
    return subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


@pytest.mark.parametrize("moment", [0, 15, 27])
def test_an_up_that_is_killed_is_removed(spec: LabSpec, moment: int) -> None:
    assert kill_up(spec, moment, "after") == -signal.SIGKILL
    assert registry.find_plan(spec.name) is not None
    assert take_down(spec.name).removed
    wait_until(lambda: traces(spec) == [])


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_up_that_is_killed_at_any_moment_is_removed(spec: LabSpec, when: str) -> None:
    moment = 0
    while kill_up(spec, moment, when) == -signal.SIGKILL:
        assert take_down(spec.name).removed
        wait_until(lambda: traces(spec) == [])
        moment += 1
    assert moment == programs_of_an_up(registry.find_plan(spec.name))


def programs_of_an_up(plan: LabPlan | None) -> int:
    assert plan is not None
    keys, switch, start = 1 + len(plan.hosts), len(namespaces.make_switch(plan)), len(plan.hosts)
    return keys + switch + start + sum(len(namespaces.plug_in(plan, host)) for host in plan.hosts)


@pytest.mark.slow
def test_a_down_that_is_killed_is_finished_by_another(spec: LabSpec) -> None:
    killed = KILLED_UP.replace(
        "Lab.up(LabSpec(name, folder, hosts=2, cpus=0.5))",
        "lab = Lab.find(name)\nlab.down()",
    )
    moment, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        Lab.up(spec)
        command = [sys.executable, "-c", killed, spec.name, str(spec.where), str(moment), "after"]
        status = subprocess.run(command, check=False).returncode
        take_down(spec.name)
        wait_until(lambda: traces(spec) == [])
        moment += 1
    assert status == 0
    assert moment > 4
