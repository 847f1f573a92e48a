"""What a host's samples say, and what they do not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from echelon.commands.terminal_dashboard import render_dashboard
from echelon.explain.history import read_history
from echelon.explain.host_samples import COLUMNS, find_lost, host_state, host_table
from echelon.explain.page import report_sections
from echelon.explain.report import build_report
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from tests.explain.made_runs import MadeRun

SAMPLE: dict[str, Any] = {
    "host": "host1",
    "seconds": 2.0,
    "processors": 0.5,
    "memory": 200 * 2**30,
    "memory_total": 256 * 2**30,
    "disk_read": 4_000_000,
    "disk_written": 0,
    "card": "eth0",
    "cards": {"eth0": [25_000_000, 2_500_000], "lo": [9, 9]},
    "gpus": [{"busy": 0.9, "celsius": 61}, {"busy": 0.7, "celsius": 74}],
}


def test_a_host_is_shown_with_everything_that_was_measured() -> None:
    heading, ((host, cells),) = host_table([SAMPLE])
    assert (heading, host) == (["host", *COLUMNS], "host1")
    assert cells == [
        "50%",
        "80% (2)",
        "74 °C",
        "200.0 of 256 GiB",
        "2 MB/s",
        "0 bytes/s",
        "eth0",
        "100 Mbit/s",
        "10 Mbit/s",
    ]


def test_what_nobody_measured_has_no_column() -> None:
    without: dict[str, Any] = {
        "gpus": [],
        "disk_read": None,
        "disk_written": None,
        "memory": None,
        "card": None,
    }
    assert host_table([SAMPLE | without])[0] == ["host", "processors", "in", "out"]


def test_a_gpu_that_does_not_tell_its_load_is_a_gpu_all_the_same() -> None:
    state = host_state(SAMPLE | {"gpus": [{"memory": 0.1}, {}]})
    assert (state.gpus, state.gpus_busy, state.busy, state.celsius) == (2, None, None, None)
    assert state.cells()["GPUs"] == "- (2)"


def test_a_sample_of_somebody_elses_making_is_a_sample() -> None:
    state = host_state({"kind": "host", "processors": "many", "memory": float("inf")})
    assert (state.host, state.processors, state.memory) == ("", None, None)


@pytest.mark.parametrize("cards", [7, ["eth0"], {"eth0": 7}, {"eth0": ["many", "few"]}, {"eth0": [1]}])
def test_cards_and_gpus_in_another_form_are_not_counted(cards: object) -> None:
    state = host_state(SAMPLE | {"card": "eth0", "cards": cards, "gpus": 3})
    assert (state.received, state.sent, state.gpus) == (0.0, 0.0, 0)


def test_the_last_sample_of_a_host_counts() -> None:
    _, rows = host_table([SAMPLE, SAMPLE | {"processors": 0.75}], ("processors",))
    assert rows == [("host1", ["75%"])]


def test_a_host_that_fell_silent_while_others_went_on_is_shown_as_lost() -> None:
    one, two = SAMPLE | {"host": "host1"}, SAMPLE | {"host": "host2"}
    _, rows = host_table([one, two], ("processors", "in"), {"host1": 130.0})
    assert rows == [("host1 (lost, silent for 2:10)", ["-", "-"]), ("host2", ["50%", "100 Mbit/s"])]


def changed(run: RunFolder, rank: int, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write a worker's records anew."""
    file = run.worker_records(rank)
    records = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records if record is not None))


def test_a_host_that_fell_silent_is_lost_to_page_and_terminal(tmp_path: Path) -> None:
    run = MadeRun(steps=1000).write(tmp_path / "run")
    assert find_lost(read_history(run)) == {}
    changed(
        run, 1, lambda record: record if record.get("step", 0) <= 500 and record["kind"] != "host" else None
    )
    with contextlib.closing(RecordWriter(run.worker_records(1))) as records:
        records.write(
            **SAMPLE | {"kind": "host", "host": "host2", "time": read_history(run).first.steps[500]["time"]}
        )
    lost = find_lost(read_history(run))
    assert lost == {"host2": pytest.approx(50, abs=1)}
    out = io.StringIO()
    report = build_report(run)
    Console(file=out, width=200, color_system=None).print(render_dashboard(report, []))
    row = next(line for line in out.getvalue().splitlines() if "host2" in line)
    assert "lost, silent for" in row
    assert "Mbit/s" not in row
    assert "host2 (lost, silent for" in report_sections(report)["hosts"]


def test_a_run_in_which_nobody_writes_any_more_has_lost_all_hosts(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run", is_ended=False)
    for file in run.records.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)
    with run.lock():
        assert set(find_lost(read_history(run))) == {"host1", "host2"}
    assert find_lost(read_history(run)) == {}, "nobody trains it, and nobody is missing"


def test_a_host_whose_clock_is_behind_is_not_lost(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    changed(run, 1, lambda record: record | {"time": record["time"] - 3600})
    assert find_lost(read_history(run)) == {}


def test_a_host_without_which_the_run_was_started_anew_is_lost(tmp_path: Path) -> None:
    made = MadeRun()
    run = made.write(tmp_path / "run", is_ended=False)
    replace(made, workers=1, hosts=1, steps=70).write_worker(run, 0)
    assert list(find_lost(read_history(run))) == ["host2"]
