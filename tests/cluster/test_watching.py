"""Following what a host writes; the host is this machine, without ssh."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from echelon.agent.spec import HostSpec
from echelon.cluster.starting import Seat
from echelon.cluster.watching import HostWatch, SharedFiles
from echelon.launch.ssh import Remote
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder


def test_a_host_whose_login_script_prints_is_followed_all_the_same(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.create()
    records = RecordWriter(run.agent_records(0))
    records.write("outcome", outcome="finished", message="")
    records.close()
    python = ("sh", "-c", f'echo "Welcome! 5"; echo 5; exec {sys.executable} "$@"', "sh")
    seat = Seat(0, Remote("localhost"), python, HostSpec("here", "127.0.0.1", "lo", 1), sees_our_folder=True)
    told = list[str]()
    watch = HostWatch(seat, None, run, told.append)
    deadline = time.monotonic() + 60
    while not watch.outcome and not told and time.monotonic() < deadline:
        time.sleep(0.05)
    watch.close()
    assert (watch.outcome, told) == ("finished", [])


@pytest.mark.parametrize(
    "sent",
    [
        [(0, b"abc"), (0, b"abc")],
        [(0, b"abc"), (0, b"ab"), (2, b"c")],
        [(0, b"a"), (0, b"ab"), (1, b"bc"), (2, b"c")],
    ],
)
def test_no_byte_is_kept_twice(tmp_path: Path, sent: list[tuple[int, bytes]]) -> None:
    run = RunFolder(tmp_path)
    run.create()
    files = SharedFiles(run, [])
    for at, data in sent:
        files.append(tmp_path / "records" / "worker-0.jsonl", "records/worker-0.jsonl", at, data)
    assert (tmp_path / "records" / "worker-0.jsonl").read_bytes() == b"abc"
