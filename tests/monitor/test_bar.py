"""Bars and lines that show how far something is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from echelon.monitor.bar import working
from echelon.monitor.screen import BarScreen


def test_a_log_gets_a_line_at_the_start_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("echelon.monitor.bar.time.monotonic", lambda: now)
    out = io.StringIO()
    with working(Console(file=out, width=40), "scoring the test set") as show:
        for percent in range(100):
            now += 0.3
            show(percent / 100)
    lines = out.getvalue().splitlines()
    assert lines[0] == "scoring the test set ..."
    assert lines[1].startswith("scoring the test set: 10%, ETA ")
    assert len(lines) <= 11


def test_what_is_over_in_a_moment_gets_no_more_lines() -> None:
    out = io.StringIO()
    with working(Console(file=out, width=40), "scoring") as show:
        for percent in range(100):
            show(percent / 100)
    assert out.getvalue() == "scoring ...\n"


def test_what_is_being_done_is_told_even_if_nobody_knows_how_long_it_takes() -> None:
    out = io.StringIO()
    with working(Console(file=out, width=40), "installing") as show:
        show(None, "host1: installing torch")
    assert out.getvalue().splitlines() == ["installing ...", "installing: host1: installing torch ..."]
    out = io.StringIO()
    with working(Console(file=out, width=100, force_terminal=True, color_system=None), "export") as show:
        show(0.5, "writing the model")
    last = out.getvalue().replace("\r", "\n").split("\n")
    assert any("export: writing the model" in line and "50%" in line and "ETA" in line for line in last)


@pytest.mark.parametrize("width", [50, 80, 140])
def test_the_bar_of_a_training_fits_the_terminal_and_shows_step_and_eta(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    screen = BarScreen(console)
    screen.show({"kind": "start", "step": 0, "steps": 100_000, "workers": 2})
    step = {"loss": 5.632, "targets": 4421, "seconds": 1.0, "learning_rate": 1e-3, "gradient_norm": 1.0}
    for number in (99_998, 99_999):
        screen.show({"kind": "step", "step": number, **step})
    screen._progress.refresh()
    screen.close()
    shown = [line for line in out.getvalue().replace("\r", "\n").split("\n") if "99999/100000" in line]
    assert shown
    assert all("ETA" in line and "loss 5.632" in line and "…" not in line for line in shown)


@pytest.mark.parametrize("width", [50, 80, 140])
def test_a_long_name_gives_way_to_the_numbers(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    with working(console, "fetching " + "a-very-long-name-" * 8) as show:
        show(0.5)
    assert "50%" in out.getvalue()
    assert "ETA" in out.getvalue()
