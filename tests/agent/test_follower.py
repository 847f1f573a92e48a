"""What a host writes, on its way to whoever watches."""

from __future__ import annotations

import io
import subprocess
import threading
import time
from pathlib import Path

import pytest

from echelon.agent.follower import follow
from echelon.agent.service import _hold
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder, parse_json


def test_what_agents_and_workers_wrote_comes_and_what_a_launcher_left_there_does_not(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.create()
    for file in (run.worker_records(0), run.launcher_records):
        records = RecordWriter(file)
        records.write("event", message="hello")
        records.close()
    run.agent_log(1).write_text("whole\nhalf")
    out = io.StringIO()
    follow(run, 1, {}, out)
    said = [parse_json(line) for line in out.getvalue().splitlines()]
    files = [line["file"] for line in said if "file" in line]
    assert files == ["records/worker-0.jsonl", "logs/agent-1.log"]
    assert said[-1] == {"alive": False}


@pytest.mark.parametrize("trains", [True, False])
def test_it_is_told_whether_an_agent_has_workers(tmp_path: Path, trains: bool) -> None:
    """Any process that leads a group is a worker; what else an agent starts, for its firewall, is none."""
    run = RunFolder(tmp_path)
    run.create()
    out = io.StringIO()
    thread = threading.Thread(target=follow, args=(run, 0, None, out))
    with subprocess.Popen(["sleep", "600"], start_new_session=trains) as process:
        try:
            with _hold(run.agent_lock(0), "a"):
                thread.start()
                while not out.getvalue() and thread.is_alive():
                    time.sleep(0.01)
        finally:
            process.kill()
    thread.join()
    assert parse_json(out.getvalue().splitlines()[0]) == {"alive": True, "trains": trains}
