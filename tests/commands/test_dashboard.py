"""The dashboard of `watch` on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.dashboard import Dashboard, render_dashboard, sparkline
from echelon.explain.report import build_report
from tests.explain.made_runs import MadeRun


def test_a_curve_in_one_line_rises_and_falls_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert len(sparkline(list(range(1000)))) <= 40


def test_it_shows_how_far_how_fast_and_on_which_hosts(tmp_path: Path) -> None:
    out = io.StringIO()
    report = build_report(MadeRun().write(tmp_path / "run"))
    Console(file=out, width=100, force_terminal=True, color_system=None).print(
        render_dashboard(report, ["host2 is back"])
    )
    shown = out.getvalue()
    for words in (
        "step 60 of 60",
        "loss",
        "BLEU",
        "tokens/s",
        "computing",
        "host1",
        "host2",
        "host2 is back",
    ):
        assert words in shown, words


def test_it_says_how_long_is_left(tmp_path: Path) -> None:
    out = io.StringIO()
    run = MadeRun(steps=30).write(tmp_path / "run", is_ended=False)
    records = run.worker_records(0)
    records.write_text(records.read_text().replace('"steps": 30', '"steps": 130'))
    with run.lock():
        report = build_report(run)
    assert report.history.seconds_left == pytest.approx(10.0)
    Console(file=out, width=100, force_terminal=True, color_system=None).print(render_dashboard(report, []))
    assert "10 s to go" in out.getvalue()


def test_events_are_shown_as_they_come(tmp_path: Path) -> None:
    out = io.StringIO()
    run = MadeRun().write(tmp_path / "run")
    board = Dashboard(run, Console(file=out, width=100, force_terminal=True, color_system=None))
    board.show({"kind": "event", "message": "worker 1 was started again"})
    board.close()
    assert "worker 1 was started again" in out.getvalue()
