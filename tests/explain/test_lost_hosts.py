"""What is said of runs that lost a host, restarted without it, and perhaps got it back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from echelon.explain.report import build_report
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder, write_json
from tests.explain.histories import append
from tests.explain.made_runs import COMPUTING, MadeRun
from tests.explain.test_resumed_runs import answers

SLOWER = COMPUTING | {"forward": 0.13}
"""0.2 seconds a step in place of 0.1."""


def restart(run: RunFolder, rank: int, host: str, *, at: float, step: int, steps: int) -> None:
    """Two workers go on from a checkpoint, twice as slowly and with half the traffic."""
    start = read_records(run.worker_records(rank))[0]
    start |= {
        "time": at,
        "step": step,
        "workers": 2,
        "hosts": 2,
        "hosts_given": 2,
        "host": host,
        "setup_seconds": 3.0,
    }
    made: list[dict[str, Any]] = [
        {"kind": "step", "time": at + 0.2 * number, "step": step + number, "seconds": 0.2, "phases": SLOWER}
        | {"targets": 1000, "loss": 2.0, "learning_rate": 1e-3, "received": 5_000_000, "sent": 5_000_000}
        for number in range(1, steps + 1)
    ]
    append(run, rank, [start, *made])


def that_lost_a_host(folder: Path, *, relaunched: bool = False) -> RunFolder:
    """60 steps on three hosts; host3 is lost, 15 steps are repeated, and after 120 host3 has host2's place."""
    run = MadeRun(workers=3, hosts=3, hosts_given=3, valid=(), exchange="all_reduce").write(
        folder, is_ended=False
    )
    began, ended = (read_records(run.worker_records(0))[index]["time"] for index in (0, -1))
    append(run, 0, [{"kind": "host", "time": ended + 4.0, "host": "host1", "seconds": 2.0}])
    lost, swapped = ended + 4.0 + 10.0, ended + 14.0 + 15.0 + 8.0
    for rank in range(2):
        restart(run, rank, f"host{rank + 1}", at=lost, step=45, steps=75)
        restart(run, rank, ("host1", "host3")[rank], at=swapped, step=120, steps=40)
    launches = [began - 5.0, *([lost - 4.0] if relaunched else [])]
    write_json(run.provenance, [{"time": datetime.fromtimestamp(at, UTC).isoformat()} for at in launches])
    return run


def test_a_lost_host_is_paid_for_to_the_end(tmp_path: Path) -> None:
    """Cost was that of the last group's hosts, without the time in which it regrouped."""
    run = that_lost_a_host(tmp_path / "run")
    report = build_report(run, hourly=3600.0)
    records = read_records(run.worker_records(0))
    wall = records[-1]["time"] - records[0]["time"]
    assert report.case.cost == pytest.approx(3 * wall, rel=0.01)
    assert any("3 hosts for" in line for line in answers(report)["cost"].evidence)
    assert any("a host that stood by or was lost" in line for line in answers(report)["cost"].evidence)


def test_hosts_of_a_later_launch_are_counted_for_themselves(tmp_path: Path) -> None:
    report = build_report(that_lost_a_host(tmp_path / "run", relaunched=True))
    hosts = [rental.hosts for rental in report.history.rentals]
    assert hosts == [3, 3], "the second launch had host1, host2 and host3, two at a time"
    assert report.history.pause_seconds == pytest.approx(7.0, abs=0.1)
    assert report.history.account.regrouping == pytest.approx(5.0, abs=0.1)


def test_a_restart_without_a_host_is_no_pause(tmp_path: Path) -> None:
    report = build_report(that_lost_a_host(tmp_path / "run"))
    document = report.to_json()
    assert document["pause_seconds"] == 0
    assert document["breakdown"]["regrouping"] == pytest.approx(7.0 + 5.0, abs=0.1)
    assert sum(document["breakdown"].values()) == pytest.approx(document["seconds"])
    duration = answers(report)["duration"]
    assert not any("pauses without training" in line for line in duration.evidence)


def test_the_time_that_failures_cost_is_named(tmp_path: Path) -> None:
    duration = answers(build_report(that_lost_a_host(tmp_path / "run")))["duration"]
    told = next(line for line in duration.evidence if line.startswith("started 3 times"))
    assert "the restarts took 23.5 seconds" in told, told
    for part in (
        "noticing that a host or worker was lost 4 seconds",
        "regrouping 12 seconds",
        "starting again 6 seconds",
        "repeating 15 steps made since the last checkpoint 1.5 seconds",
    ):
        assert part in told, told


def test_steps_are_told_with_the_workers_that_made_them(tmp_path: Path) -> None:
    """All steps were said to be those of the last group."""
    found = answers(build_report(that_lost_a_host(tmp_path / "run")))["step"]
    assert "by 2 workers (before step 46: 3 from step 1)" in found.answer, found.answer
    told = [line.split(" a step,")[0] for line in found.evidence if line.startswith("steps ")]
    assert told == [
        "steps 1 to 45: 3 workers on host1, host2, host3, 100 ms",
        "steps 46 to 120: 2 workers on host1, host2, 200 ms",
        "steps 121 to 160: 2 workers on host1, host3, 200 ms",
    ]
    assert "10 MB received on average" in next(
        line for line in found.evidence if line.startswith("steps 1 to")
    )


def test_a_host_is_not_described_by_steps_that_another_made_in_its_place(tmp_path: Path) -> None:
    workers = build_report(that_lost_a_host(tmp_path / "run")).history.workers
    assert [(worker.host, worker.typical()[0]["step"] > 120) for worker in workers] == [
        ("host1", False),
        ("host3", True),
    ]


def test_one_group_has_no_list_of_groups(tmp_path: Path) -> None:
    found = answers(build_report(MadeRun().write(tmp_path / "run")))
    assert not [line for line in found["step"].evidence if line.startswith("steps ")]
    assert "before step" not in found["step"].answer


def test_answers_of_the_last_group_say_so(tmp_path: Path) -> None:
    """A lost host's steps were left out of waiting and traffic without a word."""
    found = answers(build_report(that_lost_a_host(tmp_path / "run")))
    for key, step in (("devices", 120), ("network", 120), ("stragglers", 120), ("traffic", 45)):
        note = f"counts the steps after {step}, with the current workers and hosts; question 10 has the earlier ones"
        assert note in found[key].evidence, key
    assert any("worker 1 on host3 (since step 121)" in line for line in found["stragglers"].evidence)
    whole = answers(build_report(MadeRun().write(tmp_path / "whole")))
    assert not any("question 10" in line for answer in whole.values() for line in answer.evidence)


def test_who_is_last_for_having_more_slots_is_no_straggler_and_the_answer_says_why(tmp_path: Path) -> None:
    """Last in 96% of the steps and busy nearly twice as long, and the answer did not mention it."""
    idle = COMPUTING | {"forward": 0.015, "backward": 0.03, "communication": 0.049}
    run = MadeRun(workers=3, hosts=3, phases={0: idle, 1: idle}, overrides=("train.slots=4",))
    found = answers(build_report(run.write(tmp_path / "run")))["stragglers"]
    assert found.verdict == "no"
    assert "Worker 2 on host3 finishes last in 100% of the steps, but it takes" in found.answer
    assert "with 2 slots" in found.evidence[2]
    assert "with 1 slot," in found.evidence[1]


def test_a_worker_without_optimiser_state_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 68 bytes looked broken."""
    run = MadeRun().write(tmp_path / "run")
    folder = run.checkpoints / "step-00000060"
    folder.mkdir(parents=True)
    monkeypatch.setattr("echelon.explain.answers.storage.complete_folders", lambda _: [(60, folder)])
    for names, is_explained in (
        (("model", "optimiser-0-of-1"), False),
        (("optimiser-0-of-2", "optimiser-1-of-2"), True),
    ):
        for name in names:
            (folder / f"{name}.safetensors").touch()
        evidence = answers(build_report(run))["checkpoint_files"].evidence
        assert any("least to write" in line for line in evidence) == is_explained
