"""Hosts that are cut off, killed and frozen, as their own programs and the others see it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab.lab import Lab
from tests.lab.on_hosts import disk_of, leave_running, python
from tests.waiting import wait_until

REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), timeout=1).close()
    print("reached")
except OSError:
    print("out of reach")
"""

PROBE = """
import os, time
shared, disk = {shared!r}, {disk!r}
while True:
    try:
        with open(shared + "/probe", "w") as file:
            file.write("x")
        seen = "shared: " + " ".join(sorted(os.listdir(shared)))
    except OSError as error:
        seen = error.strerror + ":" + " ".join(os.listdir(shared))
    with open(disk + "/seen.new", "w") as file:
        file.write(seen)
    os.replace(disk + "/seen.new", disk + "/seen")
    time.sleep(0.02)
"""

COUNT = """
import time
for number in range(10**9):
    with open({disk!r} + "/count", "w") as file:
        file.write(str(number))
    time.sleep(0.01)
"""

LISTEN = """
import socket, time
listener = socket.create_server(("", 7000))
open({disk!r} + "/listens", "w").close()
connections = []
while True:
    connections.append(listener.accept())
"""

HEAR = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=5) as connection:
    print("connected", flush=True)
    sys.stdin.readline()
    connection.settimeout(1.5)
    try:
        print("heard", connection.recv(1))
    except TimeoutError:
        print("heard nothing")
    except OSError as error:
        print(error)
"""


def reach(lab: Lab, source: str, target: str) -> str:
    return python(lab, source, REACH, target)


def read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def test_a_host_that_is_cut_loses_network_and_shared_folder_until_it_is_healed(lab: Lab) -> None:
    (lab.shared / "from-outside").touch()
    leave_running(lab, "host1", PROBE.format(shared=str(lab.shared), disk=str(lab.disk)))
    seen = disk_of(lab, "host1") / "seen"
    wait_until(lambda: read(seen) == "shared: from-outside probe")
    assert reach(lab, "host2", "host1") == "reached"

    status = lab.cut("host1")
    assert (status.running, status.connected, status.frozen) == (True, False, False)
    wait_until(lambda: read(seen) == "Read-only file system:")
    assert reach(lab, "host2", "host1") == "out of reach"
    assert reach(lab, "host2", "host3") == "reached"
    assert (lab.shared / "from-outside").exists()
    assert not lab.cut("host1").connected

    assert lab.heal("host1").connected
    wait_until(lambda: read(seen) == "shared: from-outside probe")
    # host2 asked for host1's hardware address while it was cut; until that question has timed out, connections fail.
    wait_until(lambda: reach(lab, "host2", "host1") == "reached")
    assert reach(lab, "host1", "host2") == "reached"
    assert lab.heal("host1").connected


@pytest.mark.slow
def test_a_host_that_is_cut_cannot_be_reached_from_outside(lab: Lab) -> None:
    lab.cut("host3")
    try:
        result = lab.run("host3", ["true"], check=False)
        assert result.returncode == 255
        assert "port 22: " in result.stderr
    finally:
        lab.heal("host3")
    assert lab.run("host3", ["hostname"]).stdout == "host3\n"


def test_a_host_that_was_cut_keeps_its_line_rate(lab: Lab) -> None:
    lab.rate("host3", "20mbit")
    lab.cut("host3")
    lab.heal("host3")
    assert "rate 20Mbit" in lab.run("host3", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
    lab.rate("host3", "1gbit")


@pytest.mark.slow
def test_a_power_cut_ends_everything_and_tells_nobody(lab: Lab) -> None:
    lab.run("host1", ["sh", "-c", f"echo kept > {lab.disk}/kept; echo lost > /tmp/lost"])
    leave_running(lab, "host1", LISTEN.format(disk=str(lab.disk)))
    wait_until((disk_of(lab, "host1") / "listens").exists)
    ssh = ["ssh", "-F", str(lab.ssh_config), "host2", "python3", "-c", f"'{HEAR}'", "host1"]
    with subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hearer:
        assert hearer.stdout is not None
        assert hearer.stdout.readline() == "connected\n"
        lab.rate("host1", "50mbit")

        status = lab.kill("host1")
        assert (status.running, status.connected, status.processes) == (False, False, 0)
        heard, _ = hearer.communicate("now\n")
        assert heard == "heard nothing\n"
    assert reach(lab, "host2", "host1") == "out of reach"
    assert lab.kill("host1") == status
    with pytest.raises(UserError, match="host1 is off; `echelon lab boot host1` switches it on"):
        lab.cut("host1")

    status = lab.boot("host1")
    assert status.running
    assert status.connected
    assert status.rate == "50mbit"
    assert "rate 50Mbit" in lab.run("host1", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
    assert lab.run("host1", ["cat", f"{lab.disk}/kept"]).stdout == "kept\n"
    left = lab.run("host1", ["sh", "-c", "ls /tmp; ps -eo comm"]).stdout.split()
    assert "lost" not in left
    assert "python3" not in left
    assert reach(lab, "host2", "host1") == "reached"
    assert lab.boot("host1").running


def test_a_host_that_is_cut_and_killed_comes_back_connected(lab: Lab) -> None:
    lab.cut("host3")
    lab.kill("host3")
    assert lab.boot("host3").connected
    assert reach(lab, "host2", "host3") == "reached"


def test_a_frozen_host_stands_still_and_goes_on_where_it_was(lab: Lab) -> None:
    leave_running(lab, "host2", COUNT.format(disk=str(lab.disk)))
    count = disk_of(lab, "host2") / "count"
    wait_until(lambda: int(read(count) or 0) > 3)

    assert lab.freeze("host2").frozen
    reached = read(count)
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run("host2", ["true"], timeout_s=1)
    assert read(count) == reached
    assert lab.freeze("host2").frozen

    assert not lab.thaw("host2").frozen
    wait_until(lambda: int(read(count) or 0) > int(reached or 0) + 3)
    assert lab.run("host2", ["hostname"]).stdout == "host2\n"


def test_a_frozen_host_can_be_killed(lab: Lab) -> None:
    lab.freeze("host3")
    assert not lab.kill("host3").running
    assert lab.boot("host3").running
