"""Line rates and CPU shares, measured. Ratios only: how fast this machine is does not matter."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from echelon.lab.lab import Lab
from echelon.lab.rate import parse_rate
from tests.lab.on_hosts import disk_of, leave_running, python
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

RECEIVE = """
import socket, time
listener = socket.create_server(("", 7001))
open({disk!r} + "/receives", "w").close()
connection, _ = listener.accept()
buffer, received = bytearray(1 << 20), connection.recv_into(bytearray(1))
start = time.monotonic()
while count := connection.recv_into(buffer):
    received += count
with open({disk!r} + "/rate", "w") as file:
    file.write(str(received * 8 / (time.monotonic() - start)) + "\\n")
"""

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7001)) as connection:
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 16))
"""

SPIN = """
import time
start, used = time.monotonic(), time.process_time()
while time.monotonic() < start + 2:
    pass
print((time.process_time() - used) / (time.monotonic() - start))
"""


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(hosts=2, rate="200mbit", cpus=0.6)


def measure(lab: Lab, source: str, target: str, megabytes: float) -> float:
    """Bits per second from one host to another, as the receiver sees them."""
    disk = disk_of(lab, target)
    for name in ("receives", "rate"):
        (disk / name).unlink(missing_ok=True)
    leave_running(lab, target, RECEIVE.format(disk=str(lab.disk)))
    wait_until((disk / "receives").exists)
    python(lab, source, SEND, target, str(round(megabytes * 1e6 / (1 << 16))))
    wait_until(lambda: (disk / "rate").exists() and (disk / "rate").read_text().endswith("\n"))
    return float((disk / "rate").read_text())


def test_a_line_that_is_slowed_down_while_it_is_busy_stays_open(lab: Lab) -> None:
    """Large packets that wait for the fast line must not wait for ever at the slow one."""
    lab.rate("host1", "1gbit")
    lab.rate("host2", "1gbit")
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(measure, lab, "host1", "host2", 200)
        time.sleep(1)
        lab.rate("host1", "100mbit")
    assert parse_rate("100mbit") / 2 < sent.result() < parse_rate("1gbit")
    for host in lab.hosts:
        lab.rate(host, "200mbit")


@pytest.mark.parametrize(("source", "target"), [("host1", "host2"), ("host2", "host1")])
def test_a_line_has_its_rate_in_each_direction(lab: Lab, source: str, target: str) -> None:
    assert measure(lab, source, target, 40) == pytest.approx(200e6, rel=0.2)


def test_a_slower_host_slows_what_it_sends_and_what_it_receives(lab: Lab) -> None:
    lab.rate("host1", "20mbit")
    try:
        assert measure(lab, "host1", "host2", 4) == pytest.approx(20e6, rel=0.2)
        assert measure(lab, "host2", "host1", 4) == pytest.approx(20e6, rel=0.2)
    finally:
        lab.rate("host1", "200mbit")
    assert parse_rate(lab.status().hosts[0].rate) == 200e6


def test_a_host_gets_no_more_than_its_share_of_the_cpus(lab: Lab, make_lab: Callable[..., Lab]) -> None:
    """A share is a limit: on a busy machine a host may get less."""
    smaller = make_lab(hosts=1, cpus=0.1)
    share, small_share = float(python(lab, "host1", SPIN)), float(python(smaller, "host1", SPIN))
    assert small_share < 0.1 * 1.3
    assert share < 0.6 * 1.15


def test_two_programs_of_a_host_share_its_cpus(lab: Lab) -> None:
    with ThreadPoolExecutor(2) as pool:
        shares = [float(share) for share in pool.map(lambda _: python(lab, "host1", SPIN), range(2))]
    assert sum(shares) < 0.6 * 1.15
