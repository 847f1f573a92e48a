"""A run's curves and facts are those that its report has, however its records were read."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from echelon.dashboard.catalogue import Row, RunCatalogue
from echelon.dashboard.curve_cache import load_curves, save_curves
from echelon.dashboard.run_curves import RunCurves
from echelon.dashboard.thinning import VALUE
from echelon.explain.history import read_history
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder, write_json
from tests.explain.made_runs import Clock, MadeRun

MADE = MadeRun(steps=120, workers=2, hosts=2, valid=((40, 3.0, 9.0), (80, 2.5, 15.0), (120, 2.4, 14.0)))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return MADE.write(tmp_path / "run")


def read(run: RunFolder) -> RunCurves:
    curves = RunCurves(run)
    curves.update()
    return curves


def test_loss_speed_and_score_are_those_of_the_report(run: RunFolder) -> None:
    curves, history = read(run), read_history(run)
    assert curves.last_loss() == pytest.approx(history.last_loss)
    assert curves.targets_per_second() == pytest.approx(history.targets_per_second, rel=0.02)
    assert curves.best["bleu"] == (15.0, 80)
    host_seconds = sum(rental.hosts * rental.seconds for rental in history.rentals)
    assert curves.progress.host_seconds == pytest.approx(host_seconds, rel=0.02)


def test_cost_and_duration_are_those_of_the_report_with_long_scorings_and_slow_launches(
    run: RunFolder,
) -> None:
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        records.write("start", step=120, steps=121, workers=2, hosts=2, hosts_given=3, setup_seconds=4.0)
        records.write(
            "step", step=121, seconds=1.0, targets=9, phases={"forward": 1.0, "evaluation": 70.0}, loss=2.0
        )
    first = read_history(run).starts[0]["time"]
    launched = datetime.fromtimestamp(first - 600, UTC)  # preparing the data, before any host trains
    write_json(run.provenance, [{"time": launched.isoformat()}])
    row = catalogue_row(run)
    history = read_history(run)
    assert row["seconds"] == pytest.approx(history.training_seconds)
    assert row["cost"] == pytest.approx(history.host_seconds / 3600)
    assert history.training_seconds > 70


def catalogue_row(run: RunFolder) -> Row:
    catalogue = RunCatalogue([run.path], hourly=1.0)
    catalogue.refresh()
    (row,) = catalogue.rows()
    return row


def test_each_curve_has_the_recorded_values(run: RunFolder) -> None:
    curves, history = read(run), read_history(run)
    steps, losses = history.losses()
    assert curves.curves["loss"].points()[:, 0].tolist() == steps
    assert curves.curves["loss"].points()[:, VALUE].tolist() == losses
    assert curves.curves["valid/bleu"].points()[:, [0, VALUE]].tolist() == [
        [40, 9.0],
        [80, 15.0],
        [120, 14.0],
    ]
    assert {"processors/host1", "processors/host2", "memory/host2", "phase/backward"} <= set(curves.curves)
    assert curves.curves["processors/host2"].points()[0, VALUE] == pytest.approx(90.0)
    assert curves.phases["backward"] == pytest.approx(120 * 0.06)


def test_reading_as_the_run_writes_gives_the_same(tmp_path: Path) -> None:
    whole = MADE.write(tmp_path / "whole")
    growing = RunFolder(tmp_path / "growing")
    growing.create()
    growing.recipe.write_bytes(whole.recipe.read_bytes())
    curves = RunCurves(growing)
    lines = whole.worker_records(0).read_bytes().splitlines(keepends=True)
    for start in range(0, len(lines), 17):
        with growing.worker_records(0).open("ab") as file:
            file.write(b"".join(lines[start : start + 17]))
        assert curves.update()
    assert not curves.update()
    at_once = read(whole)
    for name in ("loss", "speed", "valid/bleu", "phase/forward"):
        assert np.array_equal(curves.curves[name].points(), at_once.curves[name].points()), name


def test_a_restart_replaces_the_steps_after_its_checkpoint(run: RunFolder) -> None:
    begun = MadeRun(steps=60).write(run.path.parent / "restarted", is_ended=False)
    with contextlib.closing(RecordWriter(begun.worker_records(0))) as records:
        clock = Clock()
        MADE.write_start(records, 0)
        lines = (
            begun.worker_records(0).read_text().replace('"step": 0, "steps": 120', '"step": 40, "steps": 120')
        )
        begun.worker_records(0).write_text(lines)
        for step in range(41, 51):
            MADE.write_step(records, 0, step, clock)
    curves = read(begun)
    assert curves.curves["loss"].points()[:, 0].tolist() == list(range(1, 51))
    assert curves.progress.seen == 50 * 1000
    assert [event["text"].split()[0] for event in curves.events if event["kind"] == "start"] == [
        "start",
        "restart",
    ]


def test_curves_are_restored_from_disk_and_go_on(tmp_path: Path) -> None:
    run = MadeRun(steps=60).write(tmp_path / "run", is_ended=False)
    save_curves(tmp_path / "cache", read(run))
    with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
        for step in range(61, 81):
            MADE.write_step(records, 0, step, Clock())
    kept = load_curves(tmp_path / "cache", run)
    assert kept.progress.step == 60
    assert kept.update()
    assert np.array_equal(kept.curves["loss"].points(), read(run).curves["loss"].points())
    assert kept.samples == read(run).samples


def test_what_was_kept_of_other_records_is_not_used(tmp_path: Path) -> None:
    run = MadeRun(steps=60).write(tmp_path / "run")
    save_curves(tmp_path / "cache", read(run))
    run.worker_records(0).write_text("")
    assert load_curves(tmp_path / "cache", run).progress.step == 0
    next((tmp_path / "cache").iterdir()).write_bytes(b"damaged")
    assert load_curves(tmp_path / "cache", run).progress.step == 0


def test_records_that_are_not_true_do_no_harm(run: RunFolder) -> None:
    with run.worker_records(0).open("a") as file:
        file.write('{"kind": "step", "step": -5, "seconds": 1}\n[1, 2]\nno record\n{"kind": "valid"}\n')
        file.write('{"kind": "sample", "source": 5}\n{"kind": "host", "host": "x", "time": 5, "gpus": 7}\n')
    assert read(run).progress.step == 120
