"""What is said of runs that were resumed with other workers or another length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echelon.explain.answers import Answer
from echelon.explain.comparison import compare_reports
from echelon.explain.report import Report, build_report
from echelon.monitor.screen import Speed
from echelon.runfolder import RunFolder
from tests.explain.histories import append
from tests.explain.made_runs import COMPUTING, MadeRun

IDLE = dict.fromkeys(COMPUTING, 0.0) | {"communication": sum(COMPUTING.values())}


def answers(report: Report) -> dict[str, Answer]:
    return {answer.key: answer for answer in report.answers}


def resumed_with_fewer_workers(folder: Path) -> RunFolder:
    """60 steps of three workers, of which worker 0 had no slot, and 60 more of two equal ones."""
    run = MadeRun(workers=3, hosts=1, phases={0: IDLE}, received=4_370_000, valid=()).write(folder)
    for rank in range(2):
        start = {
            "kind": "start",
            "time": 1e10,
            "step": 60,
            "steps": 120,
            "workers": 2,
            "hosts": 1,
            "host": "host1",
        }
        start |= {
            "exchange": "host_sum",
            "threads": 1,
            "parameters": 2_500_000,
            "exchanged_bytes": 10_000_000,
        }
        steps = [
            {"kind": "step", "time": 1e10 + step, "step": step, "seconds": 0.1, "targets": 1000, "loss": 2.0}
            | {"phases": COMPUTING, "received": 500, "sent": 500, "learning_rate": 0.5}
            for step in range(61, 121)
        ]
        append(run, rank, [start, *steps])
    return run


def test_steps_with_other_workers_say_nothing_about_those_of_today(tmp_path: Path) -> None:
    """Worker 1 was called a straggler, because worker 0 had had no slot while there were three."""
    report = build_report(resumed_with_fewer_workers(tmp_path / "run"))
    found = answers(report)
    assert found["stragglers"].verdict == "no", found["stragglers"].answer
    assert not [entry for entry in report.to_json()["improvements"] if entry["name"] == "straggler"]
    assert report.history.seconds_per_step == pytest.approx(sum(COMPUTING.values()), rel=0.1)
    assert report.case.traffic.measured == 500
    assert any("only the steps after 60 count here" in line for line in found["step"].evidence)


def test_one_step_with_other_workers_is_too_little_to_tell(tmp_path: Path) -> None:
    """Worker 0 was called a straggler that was last in 100% of one step."""
    run = resumed_with_fewer_workers(tmp_path / "run")
    for rank in range(2):
        lines = run.worker_records(rank).read_text().splitlines(keepends=True)
        run.worker_records(rank).write_text("".join(lines[: -60 + 1]))
    found = answers(build_report(run))
    assert (
        found["stragglers"].answer
        == "There is too little data to tell: 1 step since workers or hosts changed."
    )
    told = "counts the steps after 60, with the current workers and hosts: only 1 step, too few to rely on"
    for key in ("devices", "network", "step"):
        assert any(told in line for line in found[key].evidence), key


def test_a_comparison_names_all_numbers_of_workers(tmp_path: Path) -> None:
    runs = [resumed_with_fewer_workers(tmp_path / "a"), MadeRun().write(tmp_path / "b")]
    rows = dict(compare_reports([build_report(run) for run in runs]).differences)
    assert rows["workers"] == ["3, then 2", "2"]


def test_speed_is_counted_anew_with_other_workers() -> None:
    speed = Speed()
    for first, workers, seconds in ((0, 3, 9.0), (10, 2, 1.0)):
        speed.start({"step": first, "workers": workers})
        for step in range(first + 1, first + 11):
            speed.add({"step": step, "targets": 100, "seconds": seconds, "loss": 1.0})
    assert speed.per_second == pytest.approx(100)
    speed.start({"step": 15, "workers": 2})
    assert speed.per_second == pytest.approx(100)


def test_the_learning_rate_is_the_one_that_was_used(tmp_path: Path) -> None:
    """A resume with another length was drawn as one schedule."""
    report = build_report(resumed_with_fewer_workers(tmp_path / "run"))
    found = answers(report)["schedule"]
    assert "It peaks at 0.5 near step 61" in found.answer or "highest rate, 0.5" in found.answer, found.answer
    assert (
        "after step 60 the run's length changed from 60 to 120 steps, and the rate went from 0.001 to 0.5"
        in (found.evidence)
    )
    assert "0.5" in found.answer


def test_noise_of_the_validation_loss_is_no_overfitting(tmp_path: Path) -> None:
    falling = [(10, 0.2, 90.0), (20, 0.08, 95.0), (30, 0.045, 97.0), (40, 0.036, 98.0), (50, 0.031, 98.6)]
    noisy = MadeRun(valid=[*falling, (60, 0.0322, 97.8)], loss=lambda step: 1.0 / step).write(
        tmp_path / "noise"
    )
    assert answers(build_report(noisy))["overfitting"].verdict == "no"
    rising = [
        (10, 2.0, 9.0),
        (20, 1.0, 12.0),
        (30, 1.1, 11.0),
        (40, 1.22, 10.0),
        (50, 1.33, 9.0),
        (60, 1.45, 8.0),
    ]
    clear = MadeRun(valid=rising, loss=lambda step: 1.0 / step).write(tmp_path / "clear")
    assert answers(build_report(clear))["overfitting"].verdict == "yes"


def test_what_takes_less_than_half_is_not_called_most(tmp_path: Path) -> None:
    """43% was: "computing takes most of it"."""
    waiting = COMPUTING | {"communication": 0.12}
    run = MadeRun(phases={0: COMPUTING | {"communication": 0.02}, 1: waiting}).write(tmp_path / "run")
    report = build_report(run)
    assert report.case.bound == "compute"
    said = answers(report)["network"].answer
    assert ("most of it" in said) == (
        report.case.time.compute + report.case.time.optimiser > report.case.time.seconds / 2
    )
    many = replace(
        MadeRun(), phases={0: COMPUTING | {"communication": 0.03}, 1: COMPUTING | {"communication": 0.2}}
    )
    said = answers(build_report(many.write(tmp_path / "more")))["network"].answer
    assert "most of it" not in said, said


def test_the_seconds_of_a_report_are_those_of_its_parts(tmp_path: Path) -> None:
    found = build_report(resumed_with_fewer_workers(tmp_path / "run")).to_json()
    assert found["pause_seconds"] > 1e6
    assert found["seconds"] == pytest.approx(sum(found["breakdown"].values()))
