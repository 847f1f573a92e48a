"""The dashboard of `watch` on a terminal."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.terminal_dashboard import Dashboard, render_dashboard, sparkline
from echelon.explain.report import build_report
from tests.explain.made_runs import MadeRun


def test_a_curve_in_one_line_rises_and_falls_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert len(sparkline(list(range(1000)))) <= 40
    assert sparkline([0.0, math.inf, math.nan, 1.0]) == "▁█"
    assert sparkline([math.inf]) == ""


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


@pytest.mark.parametrize("width", [50, 80, 140])
def test_it_fits_the_terminal(tmp_path: Path, width: int) -> None:
    out = io.StringIO()
    report = build_report(MadeRun().write(tmp_path / "run"))
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(render_dashboard(report, ["an event that is " + "longer " * 30], console.width))
    lines = out.getvalue().splitlines()
    assert {len(line) for line in lines} == {width}
    assert any(re.search(r"│ training loss +\d\.\d+ +[▁▂▃▄▅▆▇█]+ +│", line) for line in lines), (
        "a curve stays in its line"
    )


def test_keys_are_read_without_enter_and_not_echoed() -> None:
    script = (
        "import fcntl, termios, time\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # as a shell does\n"
        "from echelon.commands.keyboard import reading_keys\n"
        "with reading_keys() as keys:\n"
        "    print('ready', flush=True)\n"
        "    while 'q' not in keys(): time.sleep(0.01)\n"
        "print('left', flush=True)\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, start_new_session=True
    ) as child:
        os.close(theirs)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"xyq")
        while b"left" not in shown:
            shown += os.read(ours, 1000)
        assert child.wait(timeout=20) == 0
    os.close(ours)
    assert b"x" not in shown
