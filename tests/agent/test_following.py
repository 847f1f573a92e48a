"""What a host writes, on its way to whoever watches."""

from __future__ import annotations

import io
from pathlib import Path

from echelon.agent.following import follow
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
