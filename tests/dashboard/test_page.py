"""The page in a real browser, by clicks and keys: on recorded runs, on a live one, and on a hostile one."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder, RunNotes
from tests.dashboard.browsing import (
    choose,
    drag,
    drawn_runs,
    made,
    names,
    opened,
    traces,
    wait_for_runs,
    wait_until_drawn,
)
from tests.explain.made_runs import Clock, MadeRun
from tests.explain.scored_runs import write_scored
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "<img src=x onerror=alert(1)><a href='https://evil.example'>x</a>%{x}"


def test_the_list_is_searched_sorted_and_filtered(folder: Path) -> None:
    RunNotes(("baseline",), "").write(RunFolder(folder / "rate0.001-seed1"))
    with opened(folder) as (page, _):
        assert "4 runs" in page.text("#count")
        page.press("/")
        page.type("seed=2 rate=0.004")
        page.wait_for("document.querySelectorAll('#runs tbody tr').length === 1")
        assert names(page) == ["rate0.004-seed2"]
        page.press("Escape")
        page.type("baseline")
        page.wait_for("document.querySelectorAll('#runs tbody tr').length === 1")
        assert names(page) == ["rate0.001-seed1"]
        page.press("Escape")
        page.click("[data-key='sort validation']")
        assert [name[-5:] for name in names(page)] == ["seed2", "seed2", "seed1", "seed1"]
        assert page.evaluate("document.querySelector('[aria-sort]').innerText").startswith("Best validation")
        choose(page, "state", "finished")
        assert len(names(page)) == 4
        row = page.text("#runs tbody tr")
        for words in ("finished", "31.67 BLEU", "tokens/s", "$0.", "2"):
            assert words in row, words


def test_runs_are_selected_hidden_and_pinned_by_mouse_and_keyboard(folder: Path) -> None:
    with opened(folder) as (page, _):
        assert len(drawn_runs(page)) == 4
        page.click("#none")
        page.wait_for("document.getElementById('charts-part').hidden")
        page.evaluate("document.querySelector('#runs tbody input').focus()")
        page.press("ArrowDown")
        page.press("Enter")
        page.wait_for("document.querySelectorAll('.entry').length === 1")
        chosen = page.text(".entry .who").strip()
        assert chosen == names(page)[1]
        page.press("ArrowUp")
        page.evaluate("document.activeElement.click()")
        page.wait_for("document.querySelectorAll('.entry').length === 2")
        page.click(".entry .pin")
        page.click("#none")
        page.wait_for("document.querySelectorAll('.entry').length === 1")
        assert page.text(".entry .who").strip() == chosen == names(page)[0]
        page.click("#runs tbody tr:nth-child(2) input")
        page.wait_for("document.querySelectorAll('.entry').length === 2")
        page.click(".entry:nth-child(2) .who")
        wait_for_runs(page, {chosen})


def test_charts_change_axis_scale_smoothing_and_groups(folder: Path) -> None:
    with opened(folder) as (page, _):
        shown = page.evaluate(
            "[...document.querySelectorAll('.chart:not([hidden])')].map(c => c.dataset.chart)"
        )
        assert shown == [
            *("loss", "valid/bleu", "valid/chrf", "learning_rate", "gradient_norm", "speed", "step_time"),
            *("phases", "bytes", "network", "processors", "memory"),
        ]
        recorded = next(trace for trace in traces(page) if trace["kind"] == "recorded")
        choose(page, "smooth", "0")
        page.wait_for(
            "document.querySelector('[data-chart=loss] .plot').data.every(t => t.meta.kind !== 'smoothed')"
        )
        bare = next(trace for trace in traces(page) if trace["kind"] == "recorded")
        assert bare["y"] == recorded["y"], "smoothing leaves the data alone"
        for axis, title, last in (
            ("seen", "tokens", 300_000),
            ("money", "dollars", 0.75 * 2 * 30 / 3600),
            ("time", "time since the start", 30_000),
        ):
            choose(page, "x", axis)
            page.wait_for(
                f"document.querySelector('[data-chart=loss] .plot').layout.xaxis.title.text === '{title}'"
            )
            assert max(traces(page)[0]["x"]) == pytest.approx(last, rel=0.05)
        page.click("[data-chart=loss] button[title='logarithmic scale']")
        page.wait_for("document.querySelector('[data-chart=loss] .plot').layout.yaxis.type === 'log'")
        choose(page, "group", "schedule.learning_rate")
        page.wait_for(
            "document.querySelector('[data-chart=loss] .plot').data.some(t => t.meta.kind === 'mean')"
        )
        means = [
            trace["name"] for trace in traces(page) if trace["kind"] == "mean" and trace["curve"] == "loss"
        ]
        assert means == [f"schedule.learning_rate = {rate} · training (2)" for rate in (0.001, 0.004)]
        assert {"mean - spread", "mean + spread"} <= {trace["kind"] for trace in traces(page)}


def test_zooming_by_mouse_goes_into_the_address_and_the_address_brings_it_back(folder: Path) -> None:
    with opened(folder) as (page, address):
        drag(page, "[data-chart=loss] .nsewdrag")
        page.wait_for("location.hash.includes('zoom=')")
        page.click(".entry .who")
        page.click("[data-key='sort loss']")
        there = page.evaluate("location.hash")
        page.wait_for("document.querySelector('[data-chart=speed] .plot').layout.xaxis.range[0] > 10")
        page.open("about:blank")
        page.open(f"{address}{there}")
        wait_until_drawn(page)
        assert page.evaluate("document.querySelector('[data-chart=loss] .plot').layout.xaxis.range[0]") > 10
        assert len(drawn_runs(page)) == 3
        assert page.evaluate("document.querySelector('[aria-sort]').innerText").startswith("Loss")
        page.click("#whole")
        page.wait_for("document.querySelector('[data-chart=loss] .plot').layout.xaxis.range[0] < 10")


def test_the_pointer_shows_all_values_at_a_step(folder: Path) -> None:
    with opened(folder) as (page, _):
        box = page.evaluate(
            "(() => { const e = document.querySelector('[data-chart=\"valid/bleu\"] .nsewdrag');"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        page.wait_for(
            "document.querySelectorAll('[data-chart=\"valid/bleu\"] .hoverlayer .traces').length >= 4"
        )
        shown = page.evaluate("document.querySelector('[data-chart=\"valid/bleu\"] .hoverlayer').textContent")
        for run in names(page):
            assert run in shown


def test_charts_are_saved_as_csv_and_png(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with opened(folder) as (page, _):
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(saved))
        page.click("[data-chart=loss] button[title='save the points as CSV']")
        page.click("[data-chart=loss] button[title='save the picture as PNG']")
        wanted = [saved / "echelon-loss.csv", saved / "echelon-loss.png"]
        wait_until(lambda: all(file.exists() for file in wanted), lambda: page.errors)
    lines = wanted[0].read_text().splitlines()
    assert lines[0] == '"run","curve","kind","steps","value"'
    assert sum('"recorded"' in line and '"loss"' in line for line in lines) == 4 * 300
    assert wanted[1].read_bytes().startswith(b"\x89PNG")


def test_what_is_beside_the_curves_is_in_tabs(folder: Path) -> None:
    with opened(folder) as (page, _):
        assert "schedule.learning_rate" in page.text("#tab")
        assert "dropout" not in page.text("#tab"), "only what differs"
        page.evaluate("document.getElementById('tab-recipe').focus()")
        page.press("ArrowRight")
        page.wait_for("document.querySelector('#tab').innerText.includes('A house.')")
        assert (
            page.evaluate("[...document.querySelectorAll('#tab mark')].map(m => m.innerText)").count("300")
            == 4
        )
        page.click("#tab-events")
        page.wait_for("document.querySelector('#tab').innerText.includes('start with 2 workers')")
        page.click("#tab-hosts")
        page.wait_for("document.querySelector('#tab').innerText.includes('host2')")
        page.click("#tab-answers")
        page.wait_for("document.querySelectorAll('.answers article').length > 10")
        assert "How long did it take" in page.text("#tab")
        page.click("#tab-notes")
        page.wait_for("document.querySelector('.note-form')")
        page.click(".note-form input")
        page.type("paper, good")
        page.click(".note-form textarea")
        page.type("the best so far")
        page.click(".note-form button")
        page.wait_for("document.querySelector('.note-form').innerText.includes('saved')")
        page.wait_for("[...document.querySelectorAll('.tag')].map(t => t.innerText).join() === 'paper,good'")
    kept = [RunNotes.read(RunFolder(path)) for path in folder.iterdir()]
    assert RunNotes(("paper", "good"), "the best so far") in kept


def test_experiments_and_trials_have_their_own_view(folder: Path) -> None:
    for rate in (0.002, 0.03):
        made(rate, 7).write(folder / "search" / f"trial-{rate}")
    with opened(folder) as (page, _):
        page.click("#show-studies")
        page.wait_for("document.querySelectorAll('#studies tbody tr').length === 2")
        assert page.text("#studies tbody tr:nth-child(2)").split("\t") == [
            *("runs/search", "2", "2", "36.67 BLEU", "trial-0.002", "schedule.learning_rate"),
        ]
        page.click("#studies tbody tr:nth-child(2) button")
        page.wait_for("document.querySelectorAll('.entry').length === 2")
        page.wait_for("document.querySelector('#study-plot').data[0].x.length === 2")
        assert page.evaluate("[...document.getElementById('study-plot').data[0].x]") == [0.002, 0.03]
        cells = page.text("#trials tbody tr").split("\t")
        assert [cells[0], cells[1], cells[3]] == ["trial-0.002 ★", "36.67 BLEU", "0.002"]
        there = page.evaluate("location.hash")
        page.click("#trials tbody tr:nth-child(2) button")
        page.wait_for("document.querySelectorAll('.entry').length === 1")
        page.evaluate("document.getElementById('show-studies').focus()")
        page.press("ArrowLeft")
        page.wait_for("document.querySelector('#studies-part').hidden")
        assert page.evaluate("document.activeElement.id") == "show-runs"
        page.evaluate(f"location.hash = {json.dumps(there)}")
        page.wait_for("document.querySelectorAll('#trials tbody tr').length === 2")


def test_an_experiment_says_which_setting_matters(folder: Path) -> None:
    """Scores are 31 and 32 by the seed, whatever the learning rate."""
    with opened(folder, "#show=studies") as (page, _):
        page.click("#studies tbody button")
        page.wait_for("!document.getElementById('shares').hidden")
        assert page.text("#shares").endswith(
            "order goes with each setting: seed 100%, schedule.learning_rate 0%."
        )
        assert page.evaluate("document.getElementById('by').value") == "seed"


def test_events_stand_on_the_time_axis(folder: Path) -> None:
    run = made(0.001, 4).write(folder / "eventful")
    with contextlib.closing(RecordWriter(run.launcher_records)) as records:
        records.write("failure", message="host3 was lost")
    with opened(folder) as (page, _):
        page.click("#none")
        page.click("#runs input[aria-label='show eventful']")
        wait_for_runs(page, {"eventful"})
        events = "document.querySelector('[data-chart=loss] .plot').data.filter(t => t.meta.kind === 'event')"
        page.wait_for(f"{events}.length === 1")
        texts = page.evaluate(f"[...{events}[0].text]")
        assert {"start with 2 workers", "host3 was lost", "checkpoint", "finished"} <= set(texts)
        places = page.evaluate(f"[...{events}[0].x]")
        assert [places[texts.index(text)] for text in ("start with 2 workers", "finished")] == [0, 300]
        page.click("#events")
        page.wait_for(f"{events}.length === 0")


def test_charts_are_moved_by_the_pointer(folder: Path) -> None:
    with opened(folder) as (page, _):
        choose(page, "drag", "pan")
        page.wait_for("document.querySelector('[data-chart=loss] .plot').layout.dragmode === 'pan'")
        before = page.evaluate("document.querySelector('[data-chart=loss] .plot').layout.xaxis.range")
        drag(page, "[data-chart=loss] .nsewdrag")
        page.wait_for("location.hash.includes('zoom=')")
        after = page.evaluate("document.querySelector('[data-chart=loss] .plot').layout.xaxis.range")
        assert after[1] - after[0] == pytest.approx(before[1] - before[0], rel=0.01), "moved, not zoomed"
        assert after[0] < before[0]


def test_whether_selected_runs_differ_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    write_scored(runs / "one", 0.3)
    write_scored(runs / "two", 0.1, "train.steps=40")
    write_scored(runs / "unscored", 0.1, "train.steps=60").outputs_file("test").unlink()
    with opened(runs) as (page, _):
        page.click("#none")
        page.click("#runs input[aria-label='show one']")
        page.click("#tab-verdict")
        page.wait_for("document.querySelector('#tab').innerText.includes('Select two runs or more')")
        page.click("#runs input[aria-label='show two']")
        page.wait_for("document.querySelectorAll('.verdict .conclusion').length === 1")
        assert "two has" in page.text(".verdict")
        assert "one and two differ: two is better by BLEU and chrF." in page.text(".verdict .conclusion")
        assert "difference [95%], BLEU" in page.text(".verdict table")
        page.evaluate(
            "(() => { const e = document.querySelector('#tab select'); e.selectedIndex = 1;"
            " e.dispatchEvent(new Event('change')) })()"
        )
        page.wait_for("document.querySelector('.verdict').innerText.includes('one has')")
        assert "against=" in page.evaluate("location.hash")
        page.click("#runs input[aria-label='show unscored']")
        page.wait_for("document.querySelector('.verdict').innerText.includes('unscored was not scored')")
        assert "tab=verdict" in page.evaluate("location.hash")


def test_a_confusion_matrix_is_a_table(folder: Path) -> None:
    run = RunFolder(folder / "rate0.001-seed1")
    classes = [{"name": name, "images": 10, "top1": 90.0} for name in ("cat", HOSTILE)]
    run.score_file("test").write_text(
        json.dumps(
            {
                "split": "test",
                "checkpoint": "best",
                "classes": classes,
                "confused": [],
                "confusion": [[9, 1], [2, 8]],
            }
        )
    )
    with opened(folder, "#tab=confusion") as (page, _):
        page.wait_for("document.querySelectorAll('.confusion td').length === 4")
        assert page.text(".confusion tbody tr:nth-child(2) th") == HOSTILE


def test_a_live_run_is_followed(folder: Path) -> None:
    begun = made(0.001, 3)
    run = MadeRun(**{**begun.__dict__, "steps": 100}).write(folder / "live", is_ended=False)
    with run.lock(), opened(folder) as (page, _):
        row = "[...document.querySelectorAll('#runs tbody tr')].find(r => r.innerText.includes('live')).innerText"
        assert "training" in page.evaluate(row)
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            for step in range(101, 151):
                begun.write_step(records, 0, step, Clock())
        page.wait_for(f"{row}.includes('150')")
        page.wait_for(
            "document.querySelector('[data-chart=loss] .plot').data"
            ".some(t => t.name.startsWith('live') && t.x.at(-1) === 150)"
        )


def test_nothing_in_a_run_folder_is_executed(folder: Path, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    run = MadeRun(overrides=(f"name={json.dumps('hostile')}",)).write(folder / name, is_ended=False)
    RunNotes((HOSTILE[:40],), HOSTILE).write(run)
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        records.write("event", message=HOSTILE)
        records.write("sample", step=60, source=HOSTILE, reference=HOSTILE, output=f"{HOSTILE} more")
        records.write(
            "host", host=HOSTILE, seconds=2.0, processors=0.5, memory=1, memory_total=2, cards={}, gpus=[]
        )
        records.write("failure", message=HOSTILE)
    run.score_file(HOSTILE[:4]).write_text("{}")
    with opened(folder) as (page, _):
        page.click("#none")
        page.evaluate(
            "[...document.querySelectorAll('#runs tbody input')].find(e => e.dataset.key.includes('onerror')).click()"
        )
        wait_until_drawn(page)
        page.click("#show-studies")
        page.wait_for("document.querySelectorAll('#studies tbody tr').length === 1")
        page.click("#studies tbody button")
        page.wait_for("document.getElementById('study-plot').data")
        assert name in page.text("#trials")
        page.click("#show-runs")
        for tab in ("samples", "events", "hosts", "notes", "recipe", "verdict"):
            page.click(f"#tab-{tab}")
            page.wait_for(f"document.getElementById('tab').getAttribute('aria-labelledby') === 'tab-{tab}'")
        choose(page, "group", "seed")
        assert page.evaluate("document.querySelectorAll('img[src=x], a[href*=evil]').length") == 0
        assert name in page.text("#runs tbody")


def test_it_works_in_the_dark_on_a_phone_and_with_a_screen_reader(folder: Path, tmp_path: Path) -> None:
    with opened(folder) as (page, _):
        page.prefer(prefers_color_scheme="dark")
        page.wait_for("document.querySelector('[data-chart=loss] .plot').layout.paper_bgcolor === '#1b1e27'")
        page.prefer(prefers_color_scheme="light")
        page.resize(390, 844, is_phone=True)
        page.wait_for("document.querySelector('[data-chart=loss] .plot').offsetWidth < 390")
        # Not innerWidth: a phone makes that as wide as what sticks out.
        no_scrolling_sideways = "document.documentElement.scrollWidth <= 390"
        page.wait_for(no_scrolling_sideways)
        page.click("#show-studies")
        page.click("#studies button")
        page.wait_for("document.querySelector('#study-plot').data")
        page.wait_for(no_scrolling_sideways)
        said = page.evaluate("document.querySelector('[data-chart=loss] .plot').getAttribute('aria-label')")
        assert said.startswith("Loss, over steps. rate0.00")
        assert "highest" in said
        unnamed = (
            "[...document.querySelectorAll('button, input, select, textarea')]"
            ".filter(e => !(e.innerText || e.ariaLabel || e.labels?.length)).length"
        )
        assert page.evaluate(unnamed) == 0
        page.click("[data-chart=loss] summary")
        page.wait_for("document.querySelectorAll('[data-chart=loss] tbody tr').length === 8")


@pytest.mark.skipif(
    "ECHELON_SCREENSHOTS" not in os.environ,
    reason="the pictures in docs/images are taken where ECHELON_SCREENSHOTS names a folder of real runs",
)
def test_pictures_of_real_runs() -> None:
    with opened(Path(os.environ["ECHELON_SCREENSHOTS"]), "#log=loss") as (page, _):
        page.screenshot(SCREENSHOTS / "dashboard.png")
        page.resize(390, 844, is_phone=True)
        page.evaluate("document.getElementById('charts').scrollIntoView()")
        page.wait_for(
            "[...document.querySelectorAll('.chart:not([hidden]) .main-svg')]"
            ".every(svg => svg.getBoundingClientRect().width < 390)"
        )
        page.screenshot(SCREENSHOTS / "dashboard-phone.png")
