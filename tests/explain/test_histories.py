"""What must hold of a report whatever a run has been through."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console

from echelon.commands.compare import render_comparison
from echelon.commands.report import ReportForm, render_report
from echelon.commands.runs import summarise
from echelon.commands.terminal_dashboard import render_dashboard
from echelon.dashboard.catalogue import RunCatalogue
from echelon.dashboard.details import describe_run
from echelon.dashboard.overlay import CHARTS, Axis, View, overlay_curves
from echelon.explain.comparison import compare_reports
from echelon.explain.curves import smooth
from echelon.explain.history import read_history
from echelon.explain.page import report_sections
from echelon.explain.report import build_report
from echelon.monitor.records import read_records
from echelon.monitor.screen import Speed
from echelon.runfolder import RunFolder
from tests.explain.histories import MadeHistory, Record, append, made_histories, number_of
from tests.explain.made_runs import COMPUTING, MadeRun

HOUR_OF_A_HOST = 1.0
SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def written(made: MadeHistory) -> Iterator[RunFolder]:
    with tempfile.TemporaryDirectory() as folder:
        yield made.write(Path(folder) / "run")


def rerun(records: tuple[Record, ...]) -> list[Record]:
    """What `train` writes that finds a run complete."""
    at, step = records[-1]["time"] + 5000.0, number_of(records)
    return [
        {"kind": "start", "time": at, "step": step, "steps": step, "workers": 2, "setup_seconds": 9.0},
        {"kind": "host", "time": at + 1, "host": "a", "seconds": 2.0, "processors": 0.1},
        {"kind": "score", "time": at + 7, "split": "test", "bleu": 1.0, "step": step, "checkpoint": "last"},
        {"kind": "end", "time": at + 7, "step": step, "outcome": "finished", "phases": {"evaluation": 7.0}},
    ]


@SETTINGS
@given(made_histories())
def test_time_is_accounted_for_whatever_a_run_has_been_through(made: MadeHistory) -> None:
    with written(made) as run:
        history = read_history(run)
    parts = history.account.parts()
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(history.training_seconds)
    shares = [history.share_of(part) for part in parts]
    assert sum(shares) == pytest.approx(1.0 if history.training_seconds else 0.0)
    assert all(0 <= share <= 1 + 1e-9 for share in shares)
    assert 0 <= history.pause_seconds <= history.seconds + 1e-9
    first = made.workers[0]
    if made.has_honest_clocks and first:
        whole = first[-1]["time"] - first[0]["time"] + sum(r.get("setup_seconds", 0.0) for r in first)
        assert history.seconds <= whole + 0.01 * len(first)
    assert history.seconds_left is None or history.seconds_left >= 0


@SETTINGS
@given(made_histories())
def test_bounds_are_in_order_and_every_form_can_be_written(made: MadeHistory) -> None:
    with written(made) as run:
        report = build_report(run, hourly=1.0)
        document = json.loads(render_report(report, "json"))
        check_outlook(document["outlook"])
        assert sum(document["breakdown"].values()) == pytest.approx(document["seconds"])
        assert all(seconds >= 0 for seconds in document["step_breakdown"].values())
        assert document["percentiles"]["p50"] <= document["percentiles"]["p99"]
        assert all(0 <= entry["saved"] <= 1 for entry in document["improvements"])
        assert [answer.number for answer in report.answers[:11]] == list(range(1, 12))
        comparison = compare_reports([report, build_report(run)])
        for form in get_args(ReportForm):
            assert render_report(report, form)
            assert render_comparison(comparison, form)
        assert report_sections(report)["answers"]
        Console(file=io.StringIO(), width=100).print(render_dashboard(report, []))


@SETTINGS
@given(made_histories(), made_histories())
def test_runs_with_different_histories_can_be_compared(one: MadeHistory, other: MadeHistory) -> None:
    with written(one) as first, written(other) as second:
        comparison = compare_reports([build_report(first), build_report(second)])
        for form in get_args(ReportForm):
            assert render_comparison(comparison, form)


@SETTINGS
@given(made_histories())
def test_the_page_of_all_runs_shows_what_the_report_says(made: MadeHistory) -> None:
    with written(made) as run, tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHELON_CACHE", cache)
        catalogue = RunCatalogue([run.path], HOUR_OF_A_HOST)
        catalogue.refresh()
        (row,) = catalogue.rows()
        report = build_report(run, hourly=HOUR_OF_A_HOST)
        history, summary = report.history, summarise(run)
        assert row["problem"] == ""
        assert (row["state"], row["step"]) == (summary.state, summary.step)
        assert row["cost"] == pytest.approx(report.case.cost)
        assert row["seconds"] == pytest.approx(history.training_seconds)
        assert row["loss"] == (None if history.last_loss is None else pytest.approx(history.last_loss))
        if all("targets" in step for step in history.steps):
            assert (row["speed"] or 0.0) == pytest.approx(history.targets_per_second)
        assert (row["test"] or None) == (history.test and history.test.metrics)
        best = history.best_validation()
        assert row["validation"].get("bleu", {}).get("value") == (best and best["best"])
        curves = catalogue.curves(row["id"])
        assert describe_run(curves)["steps"] == summary.step
        for chart in ("loss", "phases", "speed", "bytes", "valid/bleu"):
            for axis in get_args(Axis):
                for curve in overlay_curves([("run", curves)], View(chart, axis, hourly=HOUR_OF_A_HOST)):
                    assert len(curve["x"]) == len(curve["y"])
                    is_in_order = curve["x"] == sorted(curve["x"])
                    assert is_in_order or not made.has_honest_clocks, (chart, axis, curve)
        for chart in CHARTS:
            assert overlay_curves([("run", curves)], View(chart, "time")) is not None


def check_outlook(outlook: dict[str, Any]) -> None:
    for name, most in (("loss", float("inf")), ("score", 100.0)):
        found = outlook[name]
        if found is not None:
            assert 0 <= found["low"] <= found["expected"] <= found["high"] <= most, found


@SETTINGS
@given(made_histories())
def test_a_rerun_of_a_finished_run_changes_no_answer(made: MadeHistory) -> None:
    with written(made) as run:
        before = build_report(run)
        assert build_report(run).to_json() == before.to_json(), "the same records, the same report"
        ends = [r for r in made.workers[0] if r["kind"] in ("start", "step", "end")]
        if not ends or ends[-1].get("outcome") not in ("finished", "stopped early"):
            return
        summary = summarise(run)
        append(run, 0, rerun(made.workers[0]))
        assert build_report(run).to_json() == before.to_json()
        after = summarise(run)
        assert (after.state, after.bleu, after.test, after.last_change) == (
            summary.state,
            summary.bleu,
            summary.test,
            summary.last_change,
        )


def test_equal_records_give_equal_curves_however_long_a_run_is(tmp_path: Path) -> None:
    short, long = (
        MadeRun(steps=steps, loss=lambda step: 5 / step + (step % 7) / 10).write(tmp_path / str(steps))
        for steps in (150, 800)
    )
    curves = [smooth(read_history(run).losses()[1]) for run in (short, long)]
    assert list(curves[0]) == list(curves[1][:150])


def test_terminal_page_and_report_show_one_loss_and_one_speed(tmp_path: Path) -> None:
    run = MadeRun(steps=77, loss=lambda step: 5 / step + (step % 7) / 10).write(tmp_path / "run")
    report = build_report(run)
    speed = Speed()
    for record in read_records(run.worker_records(0)):
        if record["kind"] == "step":
            speed.add(record)
    assert speed.loss == pytest.approx(report.history.last_loss)
    assert speed.per_second == pytest.approx(report.history.targets_per_second)
    tiles = report_sections(report)["tiles"]
    assert f"<dd>{speed.loss:.3f}</dd>" in tiles
    assert f"<dd>{speed.per_second:,.0f}</dd>" in tiles
    assert f"{speed.per_second:,.0f} target tokens a second" in render_report(report, "text")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_of_a_million_steps_is_reported(tmp_path: Path) -> None:
    run = MadeRun(workers=1, hosts=1, steps=1).write(tmp_path / "run", is_ended=False)
    steps = 1_000_000
    begin = time.time() - 0.1 * steps
    append(
        run,
        0,
        [
            {"kind": "step", "time": begin + 0.1 * step, "step": step, "seconds": 0.1, "phases": COMPUTING}
            | {"loss": 2 + 6 * step**-0.5, "targets": 1000}
            for step in range(2, steps + 1)
        ],
    )
    document = build_report(run).to_json()
    assert document["steps"] == steps
    assert document["seconds"] == pytest.approx(0.1 * steps, rel=0.01)
    check_outlook(document["outlook"])
