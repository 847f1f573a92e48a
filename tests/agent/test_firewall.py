from __future__ import annotations

import os
import subprocess
import sys

import pytest

from echelon.agent.firewall import find_listening_ports, render_change, render_table
from echelon.launch.local import listen

TABLE = """\
add table inet echelon_7_ab { flags owner; }
add set inet echelon_7_ab ports { type inet_service; }
add chain inet echelon_7_ab input { type filter hook input priority filter; policy accept; }
add rule inet echelon_7_ab input iifname "lo" accept
add rule inet echelon_7_ab input ip daddr 10.0.0.2 tcp dport @ports ip saddr != { 10.0.0.1, 10.0.0.2 } drop"""


def test_the_table_of_a_host() -> None:
    assert "\n".join(render_table("echelon_7_ab", "10.0.0.2", ["10.0.0.2", "10.0.0.1", "10.0.0.1"])) == TABLE


def test_the_rule_of_a_host_on_ipv6() -> None:
    assert render_table("t", "2001:db8::1", ["2001:db8::1", "2001:db8::2"])[-1] == (
        "add rule inet t input ip6 daddr 2001:db8::1 tcp dport @ports "
        "ip6 saddr != { 2001:db8::1, 2001:db8::2 } drop"
    )


@pytest.mark.parametrize(
    ("before", "after", "commands"),
    [
        (set(), {20_000}, ["add element inet t ports { 20000 }"]),
        ({1, 2}, {2, 3, 4}, ["add element inet t ports { 3, 4 }", "delete element inet t ports { 1 }"]),
        ({1, 2}, {1, 2}, []),
    ],
)
def test_ports_that_stay_are_guarded_all_the_time(
    before: set[int], after: set[int], commands: list[str]
) -> None:
    assert render_change("t", before, after) == commands


def test_ports_of_a_process_and_of_its_children_are_found() -> None:
    program = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with (
        listen("127.0.0.1") as own,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert {own.getsockname()[1], port} <= find_listening_ports(os.getpid())
        assert find_listening_ports(child.pid) == {port}
        child.communicate("")
    assert find_listening_ports(child.pid) == set()
