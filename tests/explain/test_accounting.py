"""Where the time went: all of it, and nothing that happens after the end of a run changes it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from echelon.commands.report import render_report
from echelon.commands.runs import summarise
from echelon.explain.accounting import account_for
from echelon.explain.page import report_sections
from echelon.explain.report import build_report
from echelon.explain.sheet import Path as Line
from echelon.explain.sheet import Sheet
from echelon.monitor.records import RecordWriter, read_records
from echelon.monitor.run_state import read_state
from echelon.runfolder import RunFolder, write_json
from tests.explain.made_runs import MadeRun

SCORE = {
    "kind": "score",
    "split": "test",
    "bleu": 95.41,
    "chrf": 97.0,
    "loss": 0.2,
    "checkpoint": "step-00000060",
    "step": 60,
    "signature": "nrefs:1|case:mixed|version:2.4.0",
}
PHASES = {"forward": 0.4, "backward": 0.6}


def start(at: float, **values: Any) -> dict[str, Any]:
    return {"kind": "start", "time": at, "step": 0, "steps": 10, "setup_seconds": 2.0} | values


def step(number: int, at: float, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "time": at, "step": number, "seconds": 1.0, "phases": PHASES} | values


def append(run: RunFolder, *records: dict[str, Any]) -> None:
    with contextlib.closing(RecordWriter(run.worker_records(0))) as writer:
        for record in records:
            writer.write(**record)


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    """A run that trained, scored its test set and ended."""
    run = MadeRun().write(tmp_path / "run", is_ended=False)
    last = read_records(run.worker_records(0))[-1]["time"]
    append(
        run,
        SCORE | {"time": last + 3},
        {"kind": "end", "time": last + 3, "step": 60, "outcome": "finished", "phases": {"evaluation": 3.0}},
    )
    return run


def test_training_scoring_and_reporting_a_finished_run_again_changes_nothing(finished: RunFolder) -> None:
    before, state, summary = build_report(finished).to_json(), read_state(finished), summarise(finished)
    end = read_records(finished.worker_records(0))[-1]["time"]
    for hour in (1, 2):
        at = end + 3600 * hour
        append(
            finished,
            start(at, step=60, steps=60, workers=2, setup_seconds=21.0),
            {"kind": "host", "time": at + 1, "host": "host1", "seconds": 2.0, "processors": 0.1},
            SCORE | {"time": at + 2, "bleu": 11.0, "checkpoint": "last"},
            {
                "kind": "end",
                "time": at + 2,
                "step": 60,
                "outcome": "interrupted",
                "phases": {"evaluation": 2.0},
            },
        )
    write_json(finished.score_file("test"), SCORE | {"bleu": 12.0, "checkpoint": "last"})
    assert build_report(finished).to_json() == before
    assert build_report(finished).to_json() == before, "nor does the report itself"
    assert read_state(finished) == state
    after = summarise(finished)
    assert (after.bleu, after.bleu_of, after.test, after.state) == (95.41, "test", summary.test, "finished")


def test_a_run_that_was_made_longer_counts_on(finished: RunFolder) -> None:
    end = read_records(finished.worker_records(0))[-1]["time"]
    write_json(finished.score_file("test"), SCORE)
    append(
        finished,
        start(end + 100, step=60, steps=60),  # found nothing to do
        {"kind": "end", "time": end + 101, "step": 60, "outcome": "finished"},
        start(end + 1000, step=60, steps=62),
        step(61, end + 1001),
        step(62, end + 1002),
        {"kind": "end", "time": end + 1002, "step": 62, "outcome": "finished", "phases": {"other": 0.0}},
    )
    history = build_report(finished).history
    assert [record["time"] - end for record in history.starts[1:]] == [pytest.approx(1000)]
    assert history.pause_seconds == pytest.approx(998)
    assert history.test is None, "the score was that of its earlier end"
    assert summarise(finished).bleu_of == "validation"
    assert history.last_step == 62


def test_the_test_score_stands_at_the_top_with_checkpoint_and_signature(finished: RunFolder) -> None:
    report = build_report(finished)
    words = (
        f"test BLEU 95.41, chrF 97.00, loss 0.2000 (checkpoint step-00000060, step 60; {SCORE['signature']})"
    )
    assert render_report(report, "text").splitlines()[1:3] == [words, "best validation BLEU 12.00 (step 60)"]
    assert words.replace("|", "\\|") in "".join(render_report(report, "markdown").splitlines()[:6])
    assert words in report_sections(report)["head"]
    tiles = report_sections(report)["tiles"]
    assert tiles.startswith('<dl class="tiles"><div><dt>test BLEU</dt><dd>95.41</dd>')
    assert "<dt>best validation BLEU</dt><dd>12.00</dd>" in tiles
    document = json.loads(render_report(report, "json"))
    assert document["test"] == {key: SCORE[key] for key in document["test"]}
    assert set(document["test"]) == {"bleu", "chrf", "loss", "checkpoint", "step", "signature"}
    assert document["validation"] == {"metric": "bleu", "best": 12.0, "step": 60}


def test_a_run_that_was_scored_only_later_has_that_score(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    assert build_report(run).to_json()["test"] is None
    write_json(run.score_file("test"), SCORE)
    assert build_report(run).to_json()["test"]["bleu"] == 95.41


def test_every_second_has_its_place() -> None:
    account = account_for(
        [
            start(100.0, setup_seconds=5.0),
            step(1, 101.0),
            {"kind": "host", "time": 101.5},
            step(2, 102.2),  # 0.2 s that nobody measured
            {"kind": "end", "time": 105.2, "outcome": "finished", "phases": {"evaluation": 3.0}},
        ]
    )
    assert account.starting == 5.0
    assert account.phases["evaluation"] == 3.0
    assert account.unaccounted == pytest.approx(0.2)
    assert account.pauses == 0
    assert account.training == pytest.approx(105.2 - 100.0 + 5.0)


def test_what_a_killed_worker_did_last_is_named() -> None:
    account = account_for([start(100.0), step(1, 101.0), {"kind": "host", "time": 110.0}])
    assert account.unaccounted == pytest.approx(9.0)


def test_steps_that_do_not_say_what_they_took_are_time_all_the_same() -> None:
    account = account_for([start(100.0), step(1, 140.0, seconds=40.0, phases={})])
    assert (account.training, account.unaccounted, account.pauses) == (42.0, 40.0, 0.0)


def test_a_machine_that_slept_and_a_clock_that_was_set_are_no_training() -> None:
    slept = account_for([start(100.0), step(1, 101.0), step(2, 3702.0)])
    assert [slept.training, slept.pauses] == pytest.approx([4.0, 3600.0])
    set_back = account_for([start(100.0), step(1, 101.0), step(2, 50.0), step(3, 51.0)])
    assert [set_back.training, set_back.pauses] == pytest.approx([5.0, 0.0])


def test_lines_over_time_break_where_nobody_trained(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run", is_ended=False)
    file = run.worker_records(0)
    moved = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record | {"time": record["time"] - 3600}) + "\n" for record in moved))
    whole = build_report(run).charts["use"]
    MadeRun(workers=1, hosts=1, steps=40).write_worker(run, 0)
    broken = build_report(run).charts["use"]
    assert [len(lines(sheet)) for sheet in (whole, broken)] == [1, 2]


def lines(sheet: Sheet) -> list[Line]:
    """The lines of a chart without its grid."""
    return [mark for mark in sheet.marks if isinstance(mark, Line) and mark.series is not None]
