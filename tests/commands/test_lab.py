"""The lab in words, whole texts."""

from __future__ import annotations

from dataclasses import replace

from echelon.commands.lab import Removal, format_host, format_lab, format_removal, format_state
from echelon.lab.change import HostStatus
from echelon.lab.lab import LabStatus

HOST = HostStatus(
    name="host1",
    address="10.77.0.1",
    running=True,
    connected=True,
    frozen=False,
    rate="1gbit",
    cpus=0.5,
    processes=2,
)


def test_a_lab_in_words() -> None:
    off = replace(HOST, name="host2", address="10.77.0.2", running=False, connected=False, processes=0)
    status = LabStatus("lab", "/lab", "/lab/ssh_config", "/lab/shared", "/lab/disk", [HOST, off])
    assert format_lab(status) == (
        "HOST   ADDRESS    STATE    RATE   CPUS  PROCESSES\n"
        "host1  10.77.0.1  running  1gbit  0.5   2\n"
        "host2  10.77.0.2  off      1gbit  0.5   0\n"
        "shared folder: /lab/shared\n"
        "each host's own disk: /lab/disk\n"
        "log in: ssh -F /lab/ssh_config host1"
    )


def test_a_host_in_words() -> None:
    assert format_host(HOST) == "host1: running, 1gbit"
    assert format_state(replace(HOST, frozen=True)) == "frozen"
    assert format_state(replace(HOST, frozen=True, connected=False)) == "cut off and frozen"


def test_a_removal_in_words() -> None:
    assert format_removal(Removal("lab", removed=False, kept=None)) == "there is no lab 'lab'"
    assert format_removal(Removal("lab", removed=True, kept=None)) == "the lab 'lab' is removed"
    assert format_removal(Removal("lab", removed=True, kept="/lab/shared")) == (
        "the lab 'lab' is removed; what is in /lab/shared stays"
    )
