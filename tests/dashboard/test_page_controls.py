"""How the page is steered: what a list shows and finds, where a chart is zoomed in, and what leaves the page."""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from echelon.monitor.records import RecordWriter, read_records
from echelon.runfolder import RunFolder
from tests.browser import Page
from tests.dashboard.browsing import drag, made, names, opened, traces, wait_until_drawn
from tests.explain.made_runs import Clock, MadeRun
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ALL = "#runs thead input"
HEADINGS = "[...document.querySelectorAll('#runs thead th button')].map(b => b.innerText)"


def count_rows(page: Page, rows: int) -> None:
    page.wait_for(f"document.querySelectorAll('#runs tbody tr').length === {rows}")


def y_range(chart: str) -> str:
    return f"document.querySelector('[data-chart=\"{chart}\"] .plot').layout.yaxis.range"


def test_all_listed_runs_are_selected_with_one_box(folder: Path) -> None:
    with opened(folder) as (page, _):
        page.click("#none")
        page.press("/")
        page.type("rate0.004")
        count_rows(page, 2)
        page.click(ALL)
        page.wait_for("document.querySelectorAll('.entry').length === 2")
        page.press("/")
        page.press("Escape")
        count_rows(page, 4)
        assert page.evaluate(f"document.querySelector('{ALL}').indeterminate")
        page.click(ALL)
        page.wait_for("document.querySelectorAll('.entry').length === 4")
        page.click(ALL)
        page.wait_for("document.querySelectorAll('.entry').length === 0")


def test_settings_that_differ_are_columns_of_the_list(folder: Path) -> None:
    with opened(folder) as (page, address):
        assert page.evaluate(HEADINGS)[6:9] == ["learning_rate", "seed", "Speed"]
        page.click("[data-key='sort schedule.learning_rate']")
        page.wait_for("document.querySelector('[aria-sort]').innerText.startsWith('learning_rate')")
        assert [name[:9] for name in names(page)] == ["rate0.004"] * 2 + ["rate0.001"] * 2
        page.click("#columns summary")
        page.evaluate("document.querySelector('#columns input[data-key=seed]').focus()")
        page.press(" ")
        page.wait_for(f"!{HEADINGS}.includes('seed')")
        assert page.evaluate("document.activeElement.dataset.key") == "seed"
        page.press("Escape")
        page.wait_for("!document.getElementById('columns').open")
        there = page.evaluate("location.hash")
        page.open("about:blank")
        page.open(f"{address}{there}")
        wait_until_drawn(page)
        assert page.evaluate(HEADINGS)[6:8] == ["learning_rate ↓", "Speed"]


def test_the_search_compares_numbers(folder: Path) -> None:
    with opened(folder) as (page, _):
        page.press("/")
        page.type("learning_rate>")
        count_rows(page, 4)
        page.type("0.0035")
        count_rows(page, 2)
        page.type(" seed<=1")
        count_rows(page, 1)
        assert names(page) == ["rate0.004-seed1"]
        page.press("Escape")
        page.type("validation>31")
        count_rows(page, 2)
        assert {name[-5:] for name in names(page)} == {"seed2"}


def test_a_chart_is_zoomed_in_both_directions_until_it_is_double_clicked(folder: Path) -> None:
    with opened(folder) as (page, _):
        whole, other = page.evaluate(y_range("loss")), page.evaluate(y_range("valid/bleu"))
        drag(page, "[data-chart=loss] .nsewdrag", down=0.3)
        page.wait_for("location.hash.includes('zoom=') && location.hash.includes('y=loss')")
        low, high = page.evaluate(y_range("loss"))
        assert high - low < 0.5 * (whole[1] - whole[0])
        page.evaluate("document.getElementById('events').click()")  # draws all charts anew
        page.wait_for(
            "document.querySelector('[data-chart=loss] .plot').data.every(t => t.meta.kind !== 'event')"
        )
        assert page.evaluate(y_range("loss")) == pytest.approx([low, high])
        assert page.evaluate(y_range("valid/bleu")) == pytest.approx(other), "each has a y-axis of its own"
        # On a busy machine, two clicks may be further apart than a person's.
        page.evaluate(
            "document.querySelector('[data-chart=loss] .plot')._context.doubleClickDelay = 3_600_000"
        )
        double_click(page, "[data-chart=loss] .nsewdrag")
        page.wait_for("!location.hash.includes('zoom=') && !location.hash.includes('y=')")
        page.wait_for(f"{y_range('loss')}[1] > {high}")
        assert page.evaluate(y_range("loss")) == pytest.approx(whole)


def double_click(page: Page, selector: str) -> None:
    page.click(selector)
    x, y = page.evaluate(
        f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2] })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=2)


def test_a_zoomed_chart_stays_so_while_its_run_goes_on(folder: Path) -> None:
    begun = made(0.001, 3)
    run = MadeRun(**{**begun.__dict__, "steps": 100}).write(folder / "live", is_ended=False)
    with run.lock(), opened(folder) as (page, _):
        drag(page, "[data-chart=loss] .nsewdrag", down=0.3)
        page.wait_for("location.hash.includes('y=loss')")
        before = page.evaluate(y_range("loss"))
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            for step in range(101, 151):
                begun.write_step(records, 0, step, Clock())
        page.wait_for(
            "document.querySelector('[data-chart=loss] .plot').data"
            ".some(t => t.name.startsWith('live') && t.x.at(-1) === 150)"
        )
        assert page.evaluate(y_range("loss")) == pytest.approx(before)


def test_a_click_during_which_the_list_changes_is_not_lost(folder: Path) -> None:
    begun = made(0.001, 3)
    run = MadeRun(**{**begun.__dict__, "steps": 100}).write(folder / "live", is_ended=False)
    with run.lock(), opened(folder) as (page, _):
        row = "[...document.querySelectorAll('#runs tbody tr')].find(r => r.innerText.includes('live')).innerText"
        heading = "document.querySelector('[data-key=\"sort loss\"]')"
        x, y = page.evaluate(
            f"(() => {{ const b = {heading}.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        page.evaluate("window.asked = performance.getEntriesByType('resource').length")
        page.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            begun.write_step(records, 0, 101, Clock())
        page.wait_for(
            "performance.getEntriesByType('resource').slice(asked).some(e => e.name.endsWith('api/runs'))"
        )
        page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
        page.wait_for("document.querySelector('[aria-sort]').innerText.startsWith('Loss')")
        page.wait_for(f"{row}.includes('101')")


def test_a_saved_picture_says_what_it_shows(folder: Path) -> None:
    with opened(folder) as (page, _):
        page.evaluate(
            "(() => { const real = Plotly.toImage;"
            " Plotly.toImage = (figure, form) => { window.figure = figure; return real(figure, form); } })()"
        )
        page.click("[data-chart=loss] button[title='save the picture as PNG']")
        page.wait_for("window.figure")
        assert page.evaluate("figure.layout.title.text") == "Loss"
        shown = page.evaluate("figure.data.filter(t => t.showlegend).map(t => t.name)")
        kinds = ("training", "validation")
        assert Counter(shown) == Counter(f"{name} · {kind}" for name in names(page) for kind in kinds)
        assert page.evaluate("figure.data.some(t => t.meta.kind === 'event')")


def test_a_saved_table_names_the_run_the_curve_and_the_unit(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with opened(folder) as (page, _):
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(saved))
        for chart in ("loss", "phases"):
            page.click(f"[data-chart={chart}] button[title='save the points as CSV']")
        files = [saved / f"echelon-{chart}.csv" for chart in ("loss", "phases")]
        wait_until(lambda: all(file.exists() for file in files), lambda: page.errors)
    losses, phases = ([*csv.DictReader(file.read_text().splitlines())] for file in files)
    runs = {f"rate{rate}-seed{seed}" for rate in (0.001, 0.004) for seed in (1, 2)}
    assert {row["run"] for row in losses} == {row["run"] for row in phases} == runs
    assert {row["curve"] for row in losses} == {"loss", "valid/loss", "events"}
    forward = {row["run"]: float(row["value"]) for row in phases if row["curve"] == "phase/forward"}
    assert forward == pytest.approx(dict.fromkeys(runs, 0.03))


def test_twenty_runs_have_twenty_colours(folder: Path) -> None:
    for seed in range(3, 19):
        MadeRun(steps=20, overrides=(f"seed={seed}",)).write(folder / f"seed{seed}")
    with opened(folder) as (page, _):
        page.click(ALL)
        page.wait_for("document.querySelectorAll('.entry').length === 20")
        for scheme in ("light", "dark"):
            page.prefer(prefers_color_scheme=scheme)
            shown = "[...document.querySelectorAll('.entry .swatch')].map(s => getComputedStyle(s).backgroundColor)"
            page.wait_for(f"new Set({shown}).size === 20")


def test_gpus_have_a_chart(folder: Path) -> None:
    run = made(0.001, 5).write(folder / "on-gpus", is_ended=False)
    gpus = [{"busy": 0.9, "celsius": 60}, {"busy": 0.7, "celsius": 62}]
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        for _ in range(3):
            records.write(
                "host",
                host="host1",
                seconds=2.0,
                processors=0.5,
                memory=1,
                memory_total=2,
                cards={},
                gpus=gpus,
            )
    with opened(folder) as (page, _):
        page.wait_for("document.querySelector('[data-chart=gpus]:not([hidden]) .plot').data")
        (curve,) = [each for each in traces(page, "gpus") if each["kind"] == "smoothed"]
        assert curve["y"] == pytest.approx([80.0] * len(curve["y"]))


def test_a_chart_is_made_wide(folder: Path) -> None:
    with opened(folder) as (page, _):
        width = "document.querySelector('[data-chart=loss] .main-svg').getBoundingClientRect().width"
        before = page.evaluate(width)
        page.click("[data-chart=loss] button[title='full width']")
        page.wait_for(f"{width} > 1.5 * {before}")
        assert page.evaluate("location.hash.includes('wide=loss')")


def test_a_real_training_is_followed_to_its_end(folder: Path, toy_recipe: Path) -> None:
    run = RunFolder(folder / "toy")
    command = [sys.executable, "-m", "echelon", "train", str(toy_recipe), "--run", str(run.path)]
    command += ["--workers", "1", "--set", "evaluate.every=10"]
    with opened(folder) as (page, _):
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            row = "[...document.querySelectorAll('#runs tbody tr')].find(r => r.innerText.includes('toy'))"
            page.wait_for(row)
            page.evaluate(f"{row}.querySelector('th button').click()")
            page.wait_for(f"{row}.innerText.includes('finished')")
            page.wait_for("document.querySelector('[data-chart=\"valid/bleu\"] .plot').data[0].x.length >= 3")
        finally:
            assert training.wait() == 0
        (losses,) = [each for each in traces(page) if (each["curve"], each["kind"]) == ("loss", "recorded")]
    recorded = [each for each in read_records(run.worker_records(0)) if each["kind"] == "step"]
    assert losses["x"] == [each["step"] for each in recorded] == list(range(1, 31))
    assert losses["y"] == pytest.approx([each["loss"] for each in recorded], rel=1e-5)
