"""Logs of workers and agents, with whose they are."""

from __future__ import annotations

from pathlib import Path

from echelon.commands.logs import LogTails
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder


def test_new_lines_of_all_logs_come_with_host_and_worker(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.worker_log(0).write_text("from an earlier start\n")
    for file, host in ((run.worker_records(1), "host2"), (run.agent_records(2), "host3")):
        records = RecordWriter(file)
        records.write("start", host=host)
        records.close()
    tails = LogTails(run)
    assert list(tails.read()) == []
    with open(run.worker_log(0), "a") as log:
        log.write("hello\nhalf a li")
    run.worker_log(1).write_text("a warning\n")
    run.agent_log(2).write_text("a traceback\n")
    assert list(tails.read()) == [
        "host3 agent 2 | a traceback",
        "worker 0 | hello",
        "host2 worker 1 | a warning",
    ]
    with open(run.worker_log(0), "a") as log:
        log.write("ne\n")
    assert list(tails.read()) == ["worker 0 | half a line"]
