"""The list of runs: at once from the ends of their records, complete once they have been read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from echelon.dashboard import catalogue as catalogue_module
from echelon.dashboard.catalogue import RunCatalogue, find_runs
from echelon.dashboard.run_curves import RunCurves
from echelon.errors import EchelonError, UserError
from echelon.runfolder import RunFolder, RunNotes
from tests.explain.made_runs import MadeRun


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue_module, "_WORTH_KEEPING_BYTES", 100)


def only_row(catalogue: RunCatalogue) -> dict[str, Any]:
    (row,) = catalogue.rows()
    return row


def test_a_run_is_listed_before_it_has_been_read(tmp_path: Path) -> None:
    MadeRun(steps=400).write(tmp_path / "runs" / "first")
    catalogue = RunCatalogue([tmp_path / "runs"], hourly=2.0)
    quick = only_row(catalogue)
    assert (quick["name"], quick["state"], quick["step"], quick["steps"]) == ("first", "finished", 400, 400)
    assert quick["is_partial"]
    assert quick["cost"] is None
    before = catalogue.version
    catalogue.refresh()
    row = only_row(catalogue)
    assert catalogue.version > before
    assert not row["is_partial"]
    assert row["validation"]["bleu"] == {"value": 12.0, "step": 60}
    assert row["hosts"] == 2
    assert row["cost"] == pytest.approx(2.0 * 2 * 40 / 3600, rel=0.05)


def test_rows_follow_their_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run = MadeRun(steps=50).write(folder / "growing", is_ended=False)
    catalogue = RunCatalogue([folder])
    catalogue.refresh()
    assert only_row(catalogue)["state"] == "interrupted"
    with run.lock():
        catalogue.refresh()
        assert only_row(catalogue)["state"] == "training"
    records = run.worker_records(0)
    with records.open("a") as file:
        file.write(records.read_text().splitlines()[-2].replace('"step": 50', '"step": 51') + "\n")
        file.write('{"kind": "step", "step": 51, "seconds": 0.1, "phases": {}}\n')
    catalogue.refresh()
    assert only_row(catalogue)["step"] == 51
    RunNotes(("good",), "kept").write(run)
    catalogue.refresh()
    assert only_row(catalogue)["tags"] == ["good"]
    run.path.rename(tmp_path / "elsewhere")
    assert catalogue.rows() == []


def test_a_second_start_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MadeRun(steps=50).write(tmp_path / "runs" / "run")
    first = RunCatalogue([tmp_path / "runs"])
    first.refresh()
    again = RunCatalogue([tmp_path / "runs"])
    monkeypatch.setattr("echelon.monitor.records._parse_together", lambda _: pytest.fail("it was read again"))
    assert again._read(RunFolder(tmp_path / "runs" / "run")).progress.step == 50


def test_curves_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "_MOST_IN_MEMORY", 2)
    for number in range(4):
        MadeRun(steps=20, valid=()).write(tmp_path / "runs" / str(number))
    catalogue = RunCatalogue([tmp_path / "runs"])
    catalogue.refresh()
    assert len(catalogue._curves) == 2
    key = str(tmp_path / "runs" / "0")
    assert catalogue.curves(key).progress.step == 20


def test_settings_are_those_in_which_recipes_differ(tmp_path: Path) -> None:
    for seed in (1, 2):
        MadeRun(steps=20, valid=(), overrides=(f"seed={seed}",)).write(tmp_path / f"seed{seed}")
    catalogue = RunCatalogue([tmp_path])
    catalogue.refresh()
    assert catalogue.settings() == {str(tmp_path / f"seed{seed}"): {"seed": str(seed)} for seed in (1, 2)}


def test_runs_are_found_at_any_depth_but_not_through_links(tmp_path: Path) -> None:
    for place in ("a", "search/trial-1", "search/trial-2"):
        MadeRun(steps=5, valid=()).write(tmp_path / place)
    (tmp_path / "link").symlink_to(tmp_path / "search")
    assert [run.name for run in find_runs(tmp_path)] == ["a", "trial-1", "trial-2"]
    assert [run.name for run in find_runs(tmp_path / "a")] == ["a"]
    assert list(find_runs(tmp_path / "missing")) == []


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    MadeRun(steps=5, valid=()).write(tmp_path / "good")
    bad = MadeRun(steps=5, valid=()).write(tmp_path / "bad")
    bad.worker_records(0).unlink()
    bad.worker_records(0).mkdir()
    catalogue = RunCatalogue([tmp_path])
    catalogue.refresh()
    assert {row["name"]: row["state"] for row in catalogue.rows()} == {"good": "finished", "bad": "damaged"}


def test_a_run_on_which_reading_fails_or_takes_long_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "bad"):
        MadeRun(steps=5, valid=()).write(tmp_path / name)
    read, is_reading, is_over = RunCatalogue._read, threading.Event(), threading.Event()

    def read_slowly(self: RunCatalogue, run: RunFolder) -> RunCurves:
        if run.name == "bad":
            is_reading.set()
            is_over.wait()
            raise OverflowError("a number that nobody has thought of")
        return read(self, run)

    monkeypatch.setattr(RunCatalogue, "_read", read_slowly)
    catalogue = RunCatalogue([tmp_path])
    assert len(catalogue.rows()) == 2
    thread = threading.Thread(target=catalogue.refresh)
    thread.start()
    is_reading.wait()
    MadeRun(steps=5, valid=()).write(tmp_path / "third")
    assert {row["name"] for row in catalogue.rows()} == {"good", "bad", "third"}
    is_over.set()
    thread.join()
    problems = {row["name"]: row["problem"] for row in catalogue.rows()}
    assert problems == {"good": "", "bad": ANY, "third": ""}
    assert "OverflowError: a number that nobody" in problems["bad"]


def test_only_runs_of_the_list_can_be_asked_for(tmp_path: Path) -> None:
    MadeRun(steps=5, valid=()).write(tmp_path / "runs" / "run")
    other = MadeRun(steps=5, valid=()).write(tmp_path / "other")
    catalogue = RunCatalogue([tmp_path / "runs"])
    catalogue.refresh()
    with pytest.raises(EchelonError, match="no such run"):
        catalogue.curves(str(other.path))


def test_notes_have_limits_and_damaged_ones_are_none(tmp_path: Path) -> None:
    run = MadeRun(steps=5, valid=()).write(tmp_path / "run")
    with pytest.raises(UserError, match="at most 20 tags"):
        RunNotes(tuple(map(str, range(21))))
    with pytest.raises(UserError, match="at most 4,000 characters"):
        RunNotes((), "x" * 4001)
    RunNotes(("baseline",), "the one in the paper").write(run)
    assert RunNotes.read(run) == RunNotes(("baseline",), "the one in the paper")
    run.notes.write_text('{"tags": "x"}')
    assert RunNotes.read(run) == RunNotes()


def test_a_look_at_the_ends_of_records_does_not_replace_the_whole_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads found no row: one that reads everything, and one that lists what is there."""
    MadeRun(steps=20).write(tmp_path / "runs" / "first")
    renew = RunCatalogue._renew

    def beaten(self: RunCatalogue, entry: Any, seen: Any, *, reads: bool) -> None:
        renew(self, entry, seen, reads=True)
        renew(self, entry, seen, reads=reads)

    monkeypatch.setattr(RunCatalogue, "_renew", beaten)
    assert not only_row(RunCatalogue([tmp_path / "runs"]))["is_partial"]


def test_the_trials_of_a_search_are_listed_with_what_varies(tmp_path: Path) -> None:
    """Also while the search's own files, and the recipe that it has found, are beside them."""
    folder = tmp_path / "runs" / "toy-search"
    for number, rate in enumerate((0.001, 0.004)):
        MadeRun(steps=40, overrides=(f"schedule.learning_rate={rate}",)).write(folder / f"trial-{number:02}")
    for name in ("search.json", "search.jsonl", "search.lock", "best.toml", "search.html"):
        (folder / name).write_text("{}")
    catalogue = RunCatalogue([tmp_path / "runs"])
    catalogue.refresh()
    assert [(row["name"], row["folder"]) for row in catalogue.rows()] == [
        ("trial-00", str(folder)),
        ("trial-01", str(folder)),
    ]
    varied = catalogue.settings().values()
    assert [settings["schedule.learning_rate"] for settings in varied] == ["0.001", "0.004"]
