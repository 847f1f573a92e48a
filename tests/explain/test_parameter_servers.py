"""What a report says of a run with parameter servers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from echelon.explain.page import report_page
from echelon.explain.report import build_report
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from tests.explain.made_runs import MadeRun

ROLES = {0: "chief", 1: "worker", 2: "server"}


def write_served_run(folder: Path) -> RunFolder:
    """Two workers that take turns and one server."""
    run = MadeRun(workers=0, overrides=("train.exchange=parameter_server",)).write(folder)
    for rank, role in ROLES.items():
        with contextlib.closing(RecordWriter(run.worker_records(rank))) as records:
            records.write(
                "start",
                step=0,
                steps=20,
                workers=3,
                hosts=1,
                host="a",
                role=role,
                exchange="parameter_server",
            )
            for step in range(1, 21):
                facts = {
                    "step": step,
                    "loss": 2.0,
                    "seconds": 0.1,
                    "targets": 100,
                    "phases": {"forward": 0.1},
                }
                if role == "server":
                    records.write("step", **facts, global_step=step, dropped=1, sent_to={"0": 5, "1": 7})
                elif step % 2 == rank:
                    local = {"local_step": (step + 1) // 2, "staleness": rank, "sent_to": {"2": 1000}}
                    records.write("step", **facts, **local)
    return run


def test_roles_staleness_and_who_sent_how_much_to_whom(tmp_path: Path) -> None:
    report = build_report(write_served_run(tmp_path / "run"))
    chief, worker, server = report.to_json()["parameter_server"]
    assert (chief["name"], chief["steps"], chief["mean_staleness"]) == ("chief 0", 10, 0.0)
    assert (worker["most_stale"], worker["sent"]) == (1, {"server 2": 10_000})
    assert (server["dropped"], server["sent"]) == (1, {"chief 0": 100, "worker 1": 140})
    assert {"staleness", "progress"} <= report.charts.keys()
    page = report_page(report)
    assert "Parameter servers" in page
    assert "10 kB" in page


def test_servers_are_no_stragglers(tmp_path: Path) -> None:
    history = build_report(write_served_run(tmp_path / "run")).history
    assert [worker.rank for worker in history.workers] == [0, 1]
    assert [worker.rank for worker in history.servers] == [2]


def test_the_losses_of_steps_that_others_took_are_the_server_s(tmp_path: Path) -> None:
    history = build_report(write_served_run(tmp_path / "run")).history
    assert history.losses()[0] == [float(step) for step in range(1, 21)]


def test_a_run_without_servers_has_no_such_part(tmp_path: Path) -> None:
    report = build_report(MadeRun().write(tmp_path / "run"))
    assert report.to_json()["parameter_server"] == []
    assert "Parameter servers" not in report_page(report)


@pytest.mark.parametrize("damage", [{"sent_to": 3}, {"staleness": "x"}, {"sent_to": {"2": 1}}])
def test_records_that_others_wrote_do_no_harm(damage: dict[str, object], tmp_path: Path) -> None:
    run = write_served_run(tmp_path / "run")
    with contextlib.closing(RecordWriter(run.worker_records(1))) as records:
        records.write("step", step=21, seconds=0.1, phases={}, **damage)
    report_page(build_report(run))
