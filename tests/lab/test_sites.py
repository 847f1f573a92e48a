"""A site's launcher, and commands typed by hand, on several real hosts with a network of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import assert_same_end, train_words, wait_for_step
from tests.lab.on_hosts import python
from tests.lab.training import SETTINGS

pytestmark = pytest.mark.slow

LISTENERS = """
import socket
for name, size in (("/proc/net/tcp", 4), ("/proc/net/tcp6", 16)):
    for line in open(name).read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == "0A":
            address, port = local.split(":")
            words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, size * 2, 8)]
            print(socket.inet_ntop({4: 2, 16: 10}[size], b"".join(words)), int(port, 16))
"""
"""Where anybody on this host listens."""
NOISE = """
import os, random, socket, sys, time
held, end = [], time.time() + 6
while time.time() < end:
    for target in sys.argv[1:]:
        address, port = target.rsplit(":", 1)
        for noise in (b"", os.urandom(random.choice([1, 64, 4096])), b"GET / HTTP/1.0\\r\\n\\r\\n"):
            try:
                connection = socket.create_connection((address, int(port)), timeout=1)
                connection.sendall(noise)
                held = [*held[-30:], connection]
            except OSError:
                pass
    time.sleep(0.02)
"""
"""Garbage, and connections that are opened and left."""


def variables() -> dict[str, str]:
    names = ("PYTHONPATH", "ECHELON_CACHE", "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in names if name in os.environ}


def address_of(lab: Lab, host: str) -> str:
    return next(status.address for status in lab.status().hosts if status.name == host)


Typed = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture
def typed(lab: Lab, recipe: Path, environment: None) -> Iterator[Typed]:
    """Types the command on every host, each with its number; the processes."""
    processes: list[subprocess.Popen[str]] = []

    def type_everywhere(run: RunFolder, *more: str) -> list[subprocess.Popen[str]]:
        master = f"{address_of(lab, lab.hosts[0])}:29517"
        for rank, host in enumerate(lab.hosts):
            place = ["--nodes", str(len(lab.hosts)), "--node-rank", str(rank), "--master", master]
            settings = [f"{name}={value}" for name, value in variables().items()]
            command = [
                "env",
                *settings,
                *train_words(recipe, run, *SETTINGS),
                "--workers",
                "1",
                "--json",
                *place,
                *more,
            ]
            # A terminal, so that the command ends with its connection.
            ssh = ["ssh", "-tt", "-F", str(lab.ssh_config), host, f"{shlex.join(command)} 2> /dev/null"]
            processes.append(
                subprocess.Popen(ssh, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            )
        return processes

    yield type_everywhere
    for process in processes:
        with process:
            process.terminate()
    for status in lab.status().hosts:
        if not status.connected:
            lab.heal(status.name)


def test_mpirun_over_ssh_trains_on_three_hosts(
    lab: Lab, recipe: Path, undisturbed: RunFolder, folder: Path
) -> None:
    """With a shared folder they find each other by themselves; without, by an address that the user gives."""
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("no Open MPI here: there is no mpirun.openmpi")
    run, settings = RunFolder(folder / "mpirun"), variables()
    if folder != lab.shared:
        settings |= {"MASTER_ADDR": address_of(lab, lab.hosts[0]), "MASTER_PORT": "29518"}
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "-H", ",".join(f"{host}:1" for host in lab.hosts)]
    mpirun += [word for name in settings for word in ("-x", name)]
    command = ["env", *(f"{name}={value}" for name, value in settings.items()), *mpirun]
    result = lab.run(lab.hosts[0], [*command, *train_words(recipe, run, *SETTINGS), "--json"], timeout_s=200)
    assert json.loads(result.stdout)["finished"] is True
    assert f"starting 3 workers on {', '.join(lab.hosts)} ..." in result.stderr
    assert_same_end(undisturbed, run if folder == lab.shared else on_disk(lab, run))


def test_hosts_by_hand_listen_on_their_network_only_and_noise_changes_nothing(
    lab: Lab, typed: Typed, undisturbed: RunFolder, folder: Path
) -> None:
    before = {host: set(python(lab, host, LISTENERS).splitlines()) for host in lab.hosts}
    run = RunFolder(folder / "by-hand")
    processes = typed(run)
    found: dict[str, set[str]] = {host: set() for host in lab.hosts}
    while not all(found.values()) or len(found[lab.hosts[0]]) < 2:  # workers, and on the first host the store
        assert all(process.poll() is None for process in processes)
        for host in lab.hosts:
            found[host] |= set(python(lab, host, LISTENERS).splitlines()) - before[host]
    targets = []
    for host, listening in found.items():
        for line in listening:
            address, port = line.split()
            assert address == address_of(lab, host), "nobody listens on every address"
            targets.append(f"{address}:{port}")
    python(lab, lab.hosts[-1], NOISE, *targets)
    for process in processes:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        assert json.loads(output)["finished"] is True
    assert_same_end(undisturbed, run if folder == lab.shared else on_disk(lab, run))


def on_disk(lab: Lab, run: RunFolder) -> RunFolder:
    """A run on the first host's own disk, seen from here."""
    return RunFolder(lab.disk.parent / "disks" / lab.hosts[0] / run.path.relative_to(lab.disk))


def test_a_host_that_is_cut_off_ends_the_others_within_seconds(lab: Lab, typed: Typed) -> None:
    run = RunFolder(lab.shared / "cut")
    processes = typed(run, "--set", "train.steps=100000", "--set", "checkpoint.every=100000")
    wait_for_step(run, 5)
    lab.cut(lab.hosts[2])
    cut = time.monotonic()
    for process in processes[:2]:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 1, output
        error = json.loads(output)["error"]
        assert re.match(
            rf"node 2 on {lab.hosts[2]} has (gone|been silent for \d+ seconds,) without a word", error
        )
    print(f"a host was cut off: the others ended {time.monotonic() - cut:.1f} s later")
    ends = [r for r in read_records(run.launcher_records) if r["kind"] == "failure"]
    assert len(ends) == 1
