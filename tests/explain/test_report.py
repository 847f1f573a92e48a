"""Reports: the right answer for runs of each kind, and nothing a report says that its records do not."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echelon.commands.compare import compare_runs, render_comparison
from echelon.commands.report import choose_form, hourly_price, render_report
from echelon.errors import UserError
from echelon.explain.answers import Answer
from echelon.explain.collectives import Algorithm
from echelon.explain.cost import EFFICIENCY
from echelon.explain.diagnosis import card_share, find_straggler, seconds_of_even_shares
from echelon.explain.hardware import catalogue
from echelon.explain.history import RecordStore, read_history
from echelon.explain.page import comparison_page, report_page
from echelon.explain.report import Report, build_report
from echelon.explain.report_text import report_markdown, report_text
from echelon.explain.sheet import Path as Line
from echelon.explain.sheet import Sheet
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder, write_json
from tests.explain.histories import append
from tests.explain.made_runs import COMPUTING, MadeRun

WAITING = COMPUTING | {"communication": 0.8}
HUNGRY = COMPUTING | {"data": 0.5}


def answer(report: Report, key: str) -> Answer:
    return next(each for each in report.answers if each.key == key)


def test_a_run_bound_by_the_network_is_told_so(tmp_path: Path) -> None:
    report = build_report(MadeRun(phases={0: WAITING, 1: WAITING}).write(tmp_path / "run"))
    assert report.case.time.bound == "network"
    assert answer(report, "network").verdict == "yes"
    assert answer(report, "devices").verdict == "no"
    names = [entry["name"] for entry in report.to_json()["improvements"]]
    assert names[0] in ("faster network", "local", "low_rank")
    assert {"compressed", "low_rank", "local"} <= set(names)


def test_a_network_that_is_not_the_largest_part_is_told_what_is(tmp_path: Path) -> None:
    some = COMPUTING | {"communication": 0.4 * sum(COMPUTING.values())}
    report = build_report(MadeRun(phases={0: some, 1: some}).write(tmp_path / "run"))
    assert answer(report, "network").verdict == "in part"
    assert answer(report, "network").answer.endswith("waiting for the network, but computing takes more.")


def test_a_line_is_at_least_as_fast_as_what_training_moved_over_it(tmp_path: Path) -> None:
    """A check before training on hosts that are busy measures too little."""
    report = build_report(
        MadeRun(phases={0: WAITING, 1: WAITING}, line_bytes_per_s=1e6).write(tmp_path / "run")
    )
    network = report.to_json()["network"]
    assert network["line_share"] == 1
    assert network["line_bytes_per_s"] > 1e6


def test_a_run_bound_by_its_input_is_told_so(tmp_path: Path) -> None:
    report = build_report(MadeRun(phases={0: HUNGRY, 1: HUNGRY}).write(tmp_path / "run"))
    assert report.case.time.bound == "input"
    assert "waiting for data" in answer(report, "devices").answer
    assert answer(report, "network").verdict == "no"
    assert answer(report, "improvements").verdict == "input"


def test_a_run_bound_by_computing_is_told_so(tmp_path: Path) -> None:
    report = build_report(MadeRun().write(tmp_path / "run"))
    assert report.case.time.bound == "compute"
    assert answer(report, "network").verdict == "no"
    assert answer(report, "devices").verdict == "yes"


def test_the_gain_of_16_bits_is_what_the_catalogue_says_of_the_device(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, overrides=("train.precision=float32",))
    report = build_report(made.write(tmp_path / "run"))
    saved = {entry["name"]: entry["saved"] for entry in report.to_json()["improvements"]}
    core = catalogue().core
    faster = core.half * EFFICIENCY["cpu half"] / (core.float32 * EFFICIENCY["cpu float32"])
    assert saved["precision"] == pytest.approx((1 - 1 / faster) * 0.09 / 0.1, rel=0.02)


def test_a_run_that_overfits_is_told_so(tmp_path: Path) -> None:
    valid = ((20, 3.9, 5.0), (40, 3.4, 9.0), (60, 3.9, 8.0))
    report = build_report(MadeRun(valid=valid).write(tmp_path / "run"))
    assert answer(report, "overfitting").verdict == "yes"
    assert "since step 40" in answer(report, "overfitting").answer
    assert answer(report, "trained").verdict == "past its best"
    assert "early stop" in [entry["name"] for entry in report.to_json()["improvements"]]


def test_a_validation_loss_can_rise_from_nothing(tmp_path: Path) -> None:
    valid = ((20, 3.9, 5.0), (40, 0.0, 9.0), (60, 0.3, 8.0))
    found = answer(build_report(MadeRun(valid=valid).write(tmp_path / "run")), "overfitting")
    assert found.verdict == "yes"
    assert "has risen from 0 to 0.3" in found.answer


def test_a_run_that_has_diverged_is_told_so(tmp_path: Path) -> None:
    made = MadeRun(
        loss=lambda step: 5 - 0.15 * step if step <= 20 else 2 + 0.2 * (step - 20),
        valid=((20, 2.0, 5.0), (40, 6.0, 2.0), (60, 10.0, 0.0)),
    )
    report = build_report(made.write(tmp_path / "run"))
    for key in ("trained", "overfitting"):
        assert answer(report, key).verdict == "diverged"
        assert "since step 21 the training loss has risen by 363%" in answer(report, key).answer
        assert "--checkpoint best" in answer(report, key).answer
        assert "9.8 at step 60; its lowest was 2.117 at step 21" in answer(report, key).evidence[0]
    assert "early stop" not in [entry["name"] for entry in report.to_json()["improvements"]]


@pytest.mark.parametrize("last_finite", [0, 20, 55])
def test_a_run_whose_loss_is_not_finite_any_more_has_diverged(tmp_path: Path, last_finite: int) -> None:
    made = MadeRun(loss=lambda step: 5 - 0.05 * step if step <= last_finite else math.nan, valid=())
    report = build_report(made.write(tmp_path / "run"))
    for key in ("trained", "overfitting"):
        assert answer(report, key).verdict == "diverged"
        assert f"the last {60 - last_finite} steps have no finite loss" in answer(report, key).answer
        assert "--checkpoint best" not in answer(report, key).answer, "nothing was scored"


def test_a_step_or_two_without_a_loss_are_no_divergence(tmp_path: Path) -> None:
    made = MadeRun(loss=lambda step: math.nan if step in (30, 59, 60) else 8.0 * step**-0.4)
    assert answer(build_report(made.write(tmp_path / "run")), "trained").verdict == "no"


def test_a_validation_loss_that_rises_by_itself_is_no_overfitting(tmp_path: Path) -> None:
    valid = ((20, 3.9, 5.0), (40, 3.4, 9.0), (60, 3.9, 8.0))
    report = build_report(MadeRun(loss=lambda step: 2.0, valid=valid).write(tmp_path / "run"))
    for key in ("trained", "overfitting"):
        assert answer(report, key).verdict == "past its best"
        assert "since step 40 the validation loss has risen by 15%" in answer(report, key).answer


def test_a_run_that_could_learn_more_is_told_so(tmp_path: Path) -> None:
    falling = build_report(MadeRun(loss=lambda step: 8.0 * step**-0.4).write(tmp_path / "falling"))
    flat = build_report(MadeRun(loss=lambda step: 2.0 + 0.01 / step).write(tmp_path / "flat"))
    assert answer(falling, "trained").verdict == "no"
    assert answer(flat, "trained").verdict == "yes"
    assert answer(flat, "overfitting").verdict == "no"


def test_the_worker_that_holds_the_others_up_is_named(tmp_path: Path) -> None:
    slow = COMPUTING | {"backward": 0.12, "communication": 0.001}
    quick = COMPUTING | {"communication": 0.061}
    made = MadeRun(
        workers=3,
        hosts=3,
        phases={0: quick, 1: slow, 2: quick},
        overrides=("train.slots=3", "train.batch_tokens=1023"),
    )
    report = build_report(made.write(tmp_path / "run"))
    found = find_straggler(report.history)
    assert found is not None
    assert (found.worker.rank, found.worker.host) == (1, "host2")
    assert "worker 1 on host2" in answer(report, "stragglers").answer
    assert report.case.time.network == pytest.approx(0.001)
    assert report.case.time.stragglers > 0.03


def test_a_worker_with_more_slots_than_the_others_is_not_called_slow(tmp_path: Path) -> None:
    double = {phase: 2 * seconds for phase, seconds in COMPUTING.items()} | {"communication": 0.001}
    waiting = COMPUTING | {"communication": sum(COMPUTING.values())}
    made = MadeRun(
        workers=3, hosts=3, phases={0: waiting, 1: waiting, 2: double}, overrides=("train.slots=4",)
    )
    report = build_report(made.write(tmp_path / "run"))
    assert find_straggler(report.history) is None
    assert "but 4 slots do not divide evenly among 3 workers" in answer(report, "stragglers").answer


def test_a_worker_with_no_slot_in_some_steps_does_not_make_an_equally_fast_one_slow(tmp_path: Path) -> None:
    """Slots are dealt by speed: of two, worker 0 has 0.6 on average, worker 1 has 1.4, and a slot takes both 0.1 s."""
    few = {"data": 0.0, "forward": 0.02, "backward": 0.04, "optimiser": 0.0, "communication": 0.081}
    many = {"data": 0.0, "forward": 0.04, "backward": 0.10, "optimiser": 0.0, "communication": 0.001}
    slots = ("train.slots=2", "train.batch_tokens=1000")
    run = MadeRun(hosts=1, phases={0: few, 1: many}, slots={0: 0.6, 1: 1.4}, overrides=slots)
    report = build_report(run.write(tmp_path / "run"))
    assert find_straggler(report.history) is None
    assert answer(report, "stragglers").verdict == "no"


def test_what_exchanging_gradients_takes_on_one_machine_is_said_once(tmp_path: Path) -> None:
    for seconds in (0.001, 0.05, 5.0):
        phases = dict.fromkeys(range(2), COMPUTING | {"communication": seconds})
        report = build_report(MadeRun(hosts=1, phases=phases).write(tmp_path / str(seconds)))
        assert answer(report, "network").answer.lower().count("exchanging gradients") == 1


def test_a_report_says_what_even_shares_would_have_cost(tmp_path: Path) -> None:
    """Worker 0 computes a slot in 0.1 s, worker 1 in 0.4 s; they have 4 and 1 of 5 slots."""
    busy = {"data": 0.0, "forward": 0.1, "backward": 0.3, "optimiser": 0.0, "communication": 0.01}
    slots = ("train.slots=5", "train.batch_tokens=1000")
    dealt = MadeRun(phases={0: busy, 1: busy}, slots={0: 4, 1: 1}, overrides=slots)
    report = build_report(dealt.write(tmp_path / "dealt"))
    assert seconds_of_even_shares(report.history) == pytest.approx(3 * 0.4 - 0.4)
    evidence = answer(report, "stragglers").evidence
    assert "slots are dealt by speed: in even shares a step would take 800 ms longer" in evidence
    assert evidence[0].startswith("worker 0 on host1: busy 400 ms a step with 4 slots")
    even = MadeRun(phases={0: busy, 1: busy}, slots={0: 2, 1: 3}, overrides=slots)
    assert seconds_of_even_shares(read_history(even.write(tmp_path / "even"))) is None


def test_workers_that_are_alike_hold_nobody_up(tmp_path: Path) -> None:
    assert find_straggler(read_history(MadeRun().write(tmp_path / "run"))) is None


def test_bytes_at_the_card_stand_beside_what_the_exchange_should_move(tmp_path: Path) -> None:
    report = build_report(MadeRun(received=10_100_000, line_bytes_per_s=1.25e9).write(tmp_path / "run"))
    network = report.to_json()["network"]
    assert network["bytes_per_step"] == 10_100_000
    assert (
        network["expected_bytes_per_step"] == 10_000_000
    )  # two hosts: 2 x (2 - 1) / 2 of 4 bytes x 2.5 million
    assert "+1.0%" in answer(report, "traffic").answer
    assert network["line_share"] == pytest.approx(10.1e6 / 0.1 / 1.25e9, rel=0.01)


def test_a_sum_in_shared_memory_goes_over_no_wire(tmp_path: Path) -> None:
    run = MadeRun(hosts=1, exchange="host_sum", received=2_000, line_bytes_per_s=None).write(tmp_path / "run")
    report = build_report(run)
    assert "in shared memory" in answer(report, "traffic").answer
    assert report.to_json()["network"]["expected_bytes_per_step"] == 0


def test_processors_that_other_programs_take_are_not_fully_used(tmp_path: Path) -> None:
    found = answer(build_report(MadeRun(cpu_share=0.3).write(tmp_path / "run")), "devices")
    assert found.verdict == "no"
    assert "ran on a processor for only 30% of the time" in found.answer


def test_workers_that_wait_and_are_held_back_are_told_both(tmp_path: Path) -> None:
    run = MadeRun(phases={0: WAITING, 1: WAITING}, cpu_share=0.01).write(tmp_path / "run")
    found = answer(build_report(run), "devices")
    assert "goes into waiting for the network" in found.answer
    assert "Moreover, they ran on a processor for only" in found.answer


@pytest.mark.parametrize(
    ("algorithm", "workers", "hosts", "share"),
    [
        ("ring", 1, 1, 0.0),
        ("ring", 2, 1, 2.0),
        ("ring", 4, 1, 6.0),
        ("all_to_all", 4, 1, 6.0),
        ("ring", 2, 2, 1.0),
        ("ring", 4, 2, 1.5),
        ("hierarchical", 4, 2, 1.0),
        ("all_to_all", 4, 2, 2.0),
        ("all_to_all", 2, 2, 1.0),
        ("ring", 3, 3, 4 / 3),
    ],
)
def test_a_cards_share_is_that_of_the_way_of_adding_up(
    algorithm: Algorithm, workers: int, hosts: int, share: float
) -> None:
    assert card_share(algorithm, workers, hosts) == pytest.approx(share)


@pytest.mark.parametrize("exchange", ["hierarchical", "compressed"])
def test_a_sum_host_by_host_is_not_called_a_ring(exchange: str, tmp_path: Path) -> None:
    made = MadeRun(workers=4, exchange=exchange, overrides=("exchange.hierarchical=true",))
    report = build_report(made.write(tmp_path / "run"))
    assert report.case.traffic.share == 1.0
    assert "inside each host first" in answer(report, "traffic").evidence[0]


def test_a_run_is_not_advised_to_use_the_exchange_that_it_uses(tmp_path: Path) -> None:
    made = MadeRun(
        phases={0: WAITING, 1: WAITING}, exchange="low_rank", overrides=("train.exchange=low_rank",)
    )
    report = build_report(made.write(tmp_path / "run"))
    assert "low_rank" not in [entry["name"] for entry in report.to_json()["improvements"]]
    assert report.case.replanning is not None
    assert report.case.replanning.exchange == "low_rank"


def test_no_exchange_saves_more_than_was_waited(tmp_path: Path) -> None:
    """The line is said to be so slow that a step should take ten times as long as it did."""
    report = build_report(MadeRun(line_bytes_per_s=1e6).write(tmp_path / "run"))
    saved = {entry["name"]: entry["saved"] for entry in report.to_json()["improvements"]}
    assert 0 < saved["local"] < 0.041


def test_what_a_plan_does_not_explain_is_no_gain_of_twice_as_many(tmp_path: Path) -> None:
    """The line is so fast that the waiting must have another reason: more hosts do not make it go away."""
    made = MadeRun(phases={0: WAITING, 1: WAITING}, line_bytes_per_s=1e12)
    scaling = answer(build_report(made.write(tmp_path / "run")), "scaling").answer
    gain = float(scaling.split("would make it ")[1].split(" times")[0])
    assert 1.0 <= gain < 2.0


@pytest.mark.parametrize(
    ("hosts", "says"),
    [(1, "twice as many workers, on twice as many cores, "), (2, "twice as many workers would")],
)
def test_twice_as_many_workers_need_twice_as_many_cores(tmp_path: Path, hosts: int, says: str) -> None:
    """On a machine whose cores all compute, more workers alone would gain nothing."""
    report = build_report(MadeRun(hosts=hosts).write(tmp_path / "run"))
    assert says in answer(report, "scaling").answer


def test_a_line_that_nobody_measured_is_fitted_and_said_to_be(tmp_path: Path) -> None:
    run = MadeRun(phases={0: WAITING, 1: WAITING}, line_bytes_per_s=None).write(tmp_path / "run")
    report = build_report(run)
    assert report.case.replanning is not None
    assert report.case.replanning.cluster.line_bytes_per_s == pytest.approx(10_000_000 / 0.8)
    assert "the link was not measured" in " ".join(answer(report, "scaling").evidence)


def test_slots_that_workers_share_unevenly_still_have_one_time(tmp_path: Path) -> None:
    """4 slots on 3 workers: 0.1 s each, 0.2 s for the one that has two."""
    one, two = ({"forward": seconds, "backward": 0.0} for seconds in (0.1, 0.2))
    report = build_report(
        MadeRun(workers=3, hosts=3, phases={0: two, 1: one, 2: one}).write(tmp_path / "run")
    )
    assert report.case.replanning is not None
    assert report.case.replanning.profile.slot_seconds == pytest.approx(0.1)


def test_hosts_that_stand_by_are_paid_for(tmp_path: Path) -> None:
    run = MadeRun(workers=1, hosts=1, hosts_given=2).write(tmp_path / "run")
    report = build_report(run, hourly=3600.0)
    assert report.to_json()["hosts"] == 1
    assert float(answer(report, "cost").verdict[1:]) == pytest.approx(2 * report.history.seconds, rel=0.01)


def test_steps_are_gone_through_once_however_many_ask(tmp_path: Path) -> None:
    case = build_report(MadeRun().write(tmp_path / "run")).case
    assert case.time is case.time
    assert case.traffic is case.traffic


def test_a_checkpoints_size_is_explained_to_the_byte(tmp_path: Path) -> None:
    report = build_report(MadeRun().write(tmp_path / "run"))
    assert "2,500,000 parameters x 12 bytes" in answer(report, "checkpoint").answer
    assert "900 bytes" in answer(report, "checkpoint").answer


def test_time_is_accounted_for(tmp_path: Path) -> None:
    report = build_report(MadeRun().write(tmp_path / "run"))
    document = report.to_json()
    assert sum(document["breakdown"].values()) == pytest.approx(document["seconds"], rel=0.02)
    assert document["seconds_per_step"] == pytest.approx(0.1)


def test_the_page_and_the_text_call_waiting_by_one_word(tmp_path: Path) -> None:
    report = build_report(MadeRun(phases={0: WAITING, 1: WAITING}).write(tmp_path / "run"))
    duration = answer(report, "duration")
    assert "communication 8" in duration.answer
    assert duration.evidence[0].startswith(
        "communication (exchanging gradients, and waiting for other workers): "
    )
    assert report.charts["breakdown"].description.startswith("communication 8")


def test_money_needs_a_price(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    assert answer(build_report(run), "cost").verdict == "unknown"
    report = build_report(run, hourly=3600.0)
    assert float(answer(report, "cost").verdict[1:]) == pytest.approx(2 * report.history.seconds, rel=0.01)
    assert hourly_price(None, "g4dn.2xlarge") == 0.752
    with pytest.raises(UserError, match="no such machine"):
        hourly_price(None, "g4dn.2xlage")


def test_pauses_cost_nothing_and_are_shown_apart(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run")
    change_records(run, lambda record: record | {"time": record["time"] - 72 * 3600})
    made.write_worker(run, 0)
    report = build_report(run, hourly=3600.0)
    assert report.history.training_seconds == pytest.approx(4.0, rel=0.05)
    assert float(answer(report, "cost").verdict[1:]) == pytest.approx(4.0, rel=0.05)
    assert "72 hours" in " ".join(answer(report, "cost").evidence)
    assert "72 hours of pauses" in answer(report, "duration").answer
    assert report.to_json()["pause_seconds"] == pytest.approx(72 * 3600, rel=0.01)


def test_a_clock_that_is_behind_takes_no_time_back(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run")
    change_records(run, lambda record: record | {"time": record["time"] + 3600})
    made.write_worker(run, 0)
    report = build_report(run, hourly=3600.0)
    assert report.history.training_seconds == pytest.approx(4.0, rel=0.05)
    assert report.history.pause_seconds == 0
    assert float(answer(report, "cost").verdict[1:]) == pytest.approx(4.0, rel=0.05)


def test_loading_anew_is_no_pause(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run")
    change_records(run, lambda record: record | {"time": record["time"] - 60})
    made.write_worker(run, 0)
    change_records(run, lambda record: record | ({"setup_seconds": 58} if record["kind"] == "start" else {}))
    assert read_history(run).pause_seconds < 1


def change_records(run: RunFolder, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write every worker's records anew."""
    for file in run.records.glob("worker-*.jsonl"):
        lines = [json.dumps(change(json.loads(line))) for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines) + "\n")


def peak_evidence(run: RunFolder) -> str:
    devices = next(answer for answer in build_report(run).answers if answer.key == "devices")
    return next(line for line in devices.evidence if "FLOPs per step" in line)


def test_the_peak_is_the_best_of_its_measurements_and_never_below_what_training_reached(
    tmp_path: Path,
) -> None:
    run = MadeRun(workers=1, hosts=1).write(tmp_path / "run")
    reached = 10**10 / read_history(run).seconds_per_step

    def measured(at_start: float, at_end: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
        peaks = {"start": at_start * reached, "end": at_end * reached}
        return lambda record: (
            record | ({"peak_flops": peaks[record["kind"]]} if record["kind"] in peaks else {})
        )

    change_records(run, measured(at_start=0.5, at_end=2.0))
    assert "are 50% of the peak" in peak_evidence(run), "the machine was busy at the start"
    change_records(run, measured(at_start=2.0, at_end=0.5))
    assert "are 50% of the peak" in peak_evidence(run), "the machine was busy at the end"
    change_records(run, measured(at_start=0.5, at_end=0.5))
    assert "the share of the peak is unknown" in peak_evidence(run)
    assert "%" not in peak_evidence(run)


def test_what_records_do_not_say_was_not_measured(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    change_records(
        run, lambda record: {name: record[name] for name in record if name not in ("phases", "cpu")}
    )
    report = build_report(run)
    assert "where the time went was not measured" in answer(report, "duration").answer
    for key in ("devices", "network", "improvements"):
        assert "Not measured" in answer(report, key).answer
    assert not {"stragglers", "scaling"} & {each.key for each in report.answers}
    assert "ran on a processor" not in " ".join(answer(report, "devices").evidence)
    assert report.to_json()["bound"] == "not measured"
    assert "<dd>not measured</dd>" in report_page(report)


def test_heat_and_disks_are_shown_where_they_are_measured(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    change_records(
        run,
        lambda record: (
            record | {"gpus": [{"celsius": 77}], "disk_read": 6_000_000}
            if record["kind"] == "host"
            else record
        ),
    )
    report = build_report(run)
    evidence = " ".join(answer(report, "devices").evidence)
    assert "77 °C" in evidence
    assert "read 3 MB" in evidence
    assert "driver calls" not in evidence, "no GPU told its load"
    page = report_page(report)
    assert "77 °C" in page
    assert "3 MB/s" in page


def test_a_step_that_was_made_again_counts_once_in_the_curves(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run")
    made.write_worker(run, 0)
    history = read_history(run)
    assert len(history.steps) == 20
    assert len(history.starts) == 2
    assert "started 2 times" in " ".join(answer(build_report(run), "duration").evidence)


def test_a_run_that_went_back_to_its_checkpoint_stands_there(tmp_path: Path) -> None:
    made = MadeRun(workers=1, hosts=1, steps=20)
    run = made.write(tmp_path / "run", is_ended=False)
    with run.lock():
        before = read_history(run).seconds_left
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            records.write("start", step=5, steps=20, workers=1)
        history = read_history(run)
    assert before == 0
    assert (history.last_step, len(history.steps)) == (5, 5)
    assert history.seconds_left == pytest.approx(15 * sum(history.totals.values()) / 20)


def test_steps_that_others_made_meanwhile_count_for_the_time_left(tmp_path: Path) -> None:
    """Three workers without synchrony: each third step is the first worker's own."""
    run = MadeRun(workers=1, hosts=1, steps=20).write(tmp_path / "run", is_ended=False)
    change_records(
        run,
        lambda record: (
            record | {"steps": 90}
            if record["kind"] == "start"
            else record | {"step": 3 * record.get("step", 0)}
        ),
    )
    with run.lock():
        history = read_history(run)
    assert history.last_step == 60
    assert history.seconds_left == pytest.approx(30 * sum(history.totals.values()) / 60)


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    run = MadeRun(steps=1, valid=()).write(tmp_path / "run", is_ended=False)
    report = build_report(run)
    assert answer(report, "trained").verdict == "unknown"
    assert report_text(report)
    assert report_page(report)
    run.worker_records(0).unlink()
    run.worker_records(1).unlink()
    assert report_text(build_report(run))


def test_records_of_somebody_elses_making_do_no_harm(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run", is_ended=False)
    with open(run.worker_records(0), "a") as file:
        file.write('{"kind": "step", "step": 61, "phases": "none", "seconds": 1}\n{"kind": "event"}\n')
        file.write('{"kind": "event", "message": "<script>alert(1)</script>", "time": 1}\n')
    page = report_page(build_report(run))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_store_reads_each_line_once_and_sees_what_comes(tmp_path: Path) -> None:
    made, store = MadeRun(workers=1, hosts=1, steps=10), RecordStore()
    run = made.write(tmp_path / "run")
    assert len(read_history(run, store).steps) == 10
    MadeRun(workers=1, hosts=1, steps=12).write_worker(run, 0)
    assert len(read_history(run, store).steps) == 12


def test_every_form_has_every_answer(tmp_path: Path) -> None:
    report = build_report(MadeRun().write(tmp_path / "run"))
    text, markdown, page = report_text(report), report_markdown(report), report_page(report)
    for each in report.answers:
        assert each.heading in text
        assert f"## {each.heading}" in markdown
        assert each.question.replace("'", "&#x27;") in page
    assert [each.number for each in report.answers] == [*range(1, 12), None, None, None, None]
    assert page.count("<svg") == len(report.charts)
    assert "http" not in page.replace("http-equiv", "")


def test_a_reference_tells_whether_a_run_is_on_track(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    verdicts = []
    for factor in (1.0, 1.3, 0.7):
        file = tmp_path / "curve.csv"
        with open(file, "w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["step", "train_loss", "sec_per_step"])
            writer.writerows([step, factor * (2.0 + 6.0 * step**-0.5), 1.0] for step in range(1, 61))
        verdicts.append(answer(build_report(run, reference=file), "reference").verdict)
    assert verdicts == ["on track", "ahead", "behind"]
    (tmp_path / "curve.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="needs a column"):
        build_report(run, reference=tmp_path / "curve.csv")


def test_a_young_run_is_on_track_against_a_long_reference_that_it_follows(tmp_path: Path) -> None:
    """A twentieth of 6,000 steps is 300: smoothed over those, the reference at step 60 would be far higher."""
    run, file = MadeRun().write(tmp_path / "run"), tmp_path / "curve.csv"
    curve = ((step, 2.0 + 6.0 * step**-0.5) for step in range(1, 6001))
    file.write_text("step,train_loss\n" + "".join(f"{step},{loss}\n" for step, loss in curve))
    found = answer(build_report(run, reference=file), "reference")
    assert found.verdict == "on track"
    assert "(+0.0%)" in found.evidence[0]
    assert "at step 60" in found.evidence[1]


def test_the_verb_writes_every_form_and_a_bundle(
    tmp_path: Path, echelon: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run = MadeRun().write(tmp_path / "run")
    echelon("report", run.path, "--to", tmp_path / "r.html", "--bundle", tmp_path / "b.tar.gz")
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        names = archive.getnames()
        picture = archive.extractfile("run/charts/loss.png")
        assert picture is not None
        assert picture.read(8) == b"\x89PNG\r\n\x1a\n"
    assert {"run/report.md", "run/report.json", "run/records/worker-1.jsonl", "run/recipe.toml"} <= set(names)
    document = json.loads(echelon("report", run.path, "--json").stdout)
    promised = {"steps", "seconds", "seconds_per_step", "breakdown", "network", "answers"}
    assert promised <= set(document)
    assert {"bytes_per_step", "expected_bytes_per_step"} <= set(document["network"])
    echelon("report", tmp_path / "nothing", status=2)


def test_a_comparison_says_what_differs_the_batch_first(tmp_path: Path) -> None:
    one = MadeRun(workers=1, hosts=1, overrides=("checkpoint.every=100",)).write(tmp_path / "one")
    two = MadeRun(overrides=("checkpoint.every=1000",)).write(tmp_path / "two")
    comparison = compare_runs([one.path, two.path])
    assert comparison.measures[0] == ("global batch", ["up to 1,024 tokens"] * 2), "equal, so no difference"
    assert dict(comparison.differences)["workers"] == ["1", "2"]
    assert dict(comparison.differences)["checkpoint.every"] == ["100", "1000"]
    assert "with 2 times as many workers" in " ".join(comparison.sentences)
    assert comparison_page(comparison).count("<svg") == 2
    with pytest.raises(UserError, match="two runs or more"):
        compare_runs([one.path])


def test_runs_of_the_same_batch_are_compared_step_by_step_however_many_they_made(tmp_path: Path) -> None:
    runs = [MadeRun(steps=20).write(tmp_path / "short")]
    change_records(runs[0], lambda record: record | {"targets": 990})
    runs += [
        MadeRun().write(tmp_path / "long"),
        MadeRun(overrides=("train.batch_tokens=2048",)).write(tmp_path / "big"),
    ]
    same, differs = (compare_runs([runs[0].path, other.path]) for other in runs[1:])
    assert same.sentences[1].startswith("The global batch is the same")
    assert same.measures[0] == ("global batch", ["up to 1,024 tokens"] * 2)
    assert dict(same.measures)["target tokens per step, mean"] == ["990", "1,000"], (
        "measured, and called that"
    )
    assert any(sentence.startswith("The global batch differs") for sentence in differs.sentences)
    assert differs.differences[0] == ("global batch", ["up to 1,024 tokens", "up to 2,048 tokens"])


def test_batches_that_recipes_do_not_give_are_compared_as_they_were_counted(tmp_path: Path) -> None:
    made = MadeRun(overrides=("train.batch=auto",))
    runs = [made.write(tmp_path / name) for name in ("one", "two", "three")]
    change_records(runs[2], lambda record: record | {"targets": 990})
    first_words = [compare_runs([runs[0].path, other.path]).sentences[1] for other in runs[1:]]
    assert first_words[0].startswith("The global batch is the same")
    assert first_words[1].startswith("The global batch differs")


def test_a_comparison_says_which_run_is_better(tmp_path: Path) -> None:
    made = {"low": 9.0, "high": 12.5, "same": 12.5}
    runs = [MadeRun(valid=((40, 3.0, bleu),)).write(tmp_path / name) for name, bleu in made.items()]
    comparison = compare_runs([run.path for run in runs])
    expected = "high and same have the best validation BLEU: 12.50, against 9.00 (low)."
    assert comparison.sentences[0] == expected
    write_json(runs[0].score_file("test"), {"bleu": 31.0, "checkpoint": "best", "step": 40})
    write_json(runs[1].score_file("test"), {"bleu": 29.0, "checkpoint": "best", "step": 40})
    found = compare_runs([run.path for run in runs[:2]]).sentences[0]
    assert found == "low has the best test BLEU: 31.00, against 29.00 (high)."


def test_runs_that_do_not_differ_are_said_not_to(tmp_path: Path) -> None:
    runs = [MadeRun(steps=20).write(tmp_path / name).path for name in ("one", "two")]
    comparison = compare_runs(runs)
    assert comparison.differences == []
    assert render_comparison(comparison, "text").startswith("The recipes and clusters do not differ.")


def test_a_comparison_is_written_in_the_form_that_was_asked_for(
    tmp_path: Path, echelon: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    runs = [
        MadeRun(steps=20, workers=count).write(tmp_path / name).path
        for name, count in (("one", 2), ("two", 3))
    ]
    echelon("compare", *runs, "--json", "--to", tmp_path / "c.txt")
    assert json.loads((tmp_path / "c.txt").read_text())["runs"] == ["one", "two"]
    comparison = compare_runs(runs)
    assert json.loads(render_comparison(comparison, choose_form(None, Path("c.json"))))["runs"] == [
        "one",
        "two",
    ]
    assert render_comparison(comparison, choose_form(None, Path("c.html"))).startswith("<!DOCTYPE html>")
    assert render_comparison(comparison, choose_form(None, Path("c.md"))).startswith("# one / two")
    assert render_comparison(comparison, choose_form(None, None)).startswith("WHAT DIFFERS")
    with pytest.raises(UserError, match=r"--to c\.pdf: \.pdf is not written here; use \.md, "):
        choose_form(None, Path("c.pdf"))


def test_a_comparison_shows_no_python_and_fits_the_terminal(tmp_path: Path) -> None:
    runs = [
        MadeRun(overrides=(f"data.train.0.weight={weight}", f"model.dropout={drop}"))
        .write(tmp_path / name)
        .path
        for name, weight, drop in (("one", 1.0, 0.1), ("two", 2.0, 0.2))
    ]
    comparison = compare_runs(runs)
    assert dict(comparison.differences)["data.train.0.weight"] == ["1.0", "2.0"]
    assert not [
        value for _, values in comparison.differences for value in values if "None" in value or "{" in value
    ]
    shown = render_comparison(comparison, "text", width=50).split("\n\n")
    assert max(len(line) for part in shown[:2] for line in part.splitlines()) <= 80
    assert "  one" in shown[0]


def test_a_step_without_a_loss_shifts_no_curve(tmp_path: Path) -> None:
    runs = [MadeRun().write(tmp_path / name) for name in ("one", "two")]
    change_records(
        runs[0],
        lambda record: (
            record | {"loss": None} if record["kind"] == "step" and record["step"] == 30 else record
        ),
    )
    charts = compare_runs([run.path for run in runs]).charts
    assert points_of(charts["loss"]) == [59, 60]
    assert points_of(charts["step_time"]) == [60, 60]


def points_of(sheet: Sheet) -> list[int]:
    """How many points each line has."""
    lines = [mark for mark in sheet.marks if isinstance(mark, Line) and mark.series is not None]
    return [len(line.points) for line in lines]


def test_a_run_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with contextlib.suppress(UserError):
        build_report(RunFolder(tmp_path / "nothing"))
        raise AssertionError("a report of nothing")


def test_a_run_without_enough_processor_time_is_told_that_it_would_gain_by_more(tmp_path: Path) -> None:
    computing = {"forward": 0.4, "backward": 0.6}
    made = MadeRun(workers=1, hosts=1, phases={0: computing}, cpu_share=0.1)
    answers = {answer.key: answer for answer in build_report(made.write(tmp_path / "run")).answers}
    assert "on a processor for only 10.0% of the time" in answers["devices"].answer
    assert answers["improvements"].verdict == "processors" or "only 10.0%" in " ".join(
        answers["improvements"].evidence
    )
    assert "Nothing" not in answers["improvements"].answer


def test_workers_of_one_machine_wait_for_no_network(tmp_path: Path) -> None:
    slow = {rank: {**COMPUTING, "communication": 0.5} for rank in (0, 1)}
    run = MadeRun(hosts=1, phases=slow, line_bytes_per_s=None).write(tmp_path / "run")
    report = build_report(run)
    answers = {answer.key: answer for answer in report.answers}
    assert answers["network"].verdict == "no"
    assert answers["network"].answer.startswith("No: all workers are on one machine, so nothing leaves it.")
    assert "waiting for the network" not in render_report(report, "text")
    assert report.to_json()["bound"] == "exchange"
    rows = dict(compare_runs([run.path, MadeRun(hosts=1).write(tmp_path / "other").path]).measures)
    assert rows["network bytes per step"] == ["-", "-"]
    assert "exchanging gradients" in rows


def test_the_bytes_that_a_link_needs_its_time_for_are_named(tmp_path: Path) -> None:
    slow = {rank: {**COMPUTING, "communication": 0.9} for rank in (0, 1)}
    run = MadeRun(phases=slow, received=10_500_000).write(tmp_path / "run")
    found = next(answer for answer in build_report(run).answers if answer.key == "traffic")
    assert "+5.0% against the 10 MB that the exchange should move" in found.answer
    assert "those 10 MB take 800 ms" in found.answer, "10 MB at 12.5 MB/s"
    assert any("headers and acknowledgements of TCP and IP" in line for line in found.evidence)
    less = MadeRun(phases=slow, received=9_000_000).write(tmp_path / "less")
    found = next(answer for answer in build_report(less).answers if answer.key == "traffic")
    assert not any("headers" in line for line in found.evidence), "fewer bytes are no headers"


@pytest.mark.parametrize("width", [50, 80])
def test_a_report_is_wrapped_once_at_the_width_of_the_terminal(tmp_path: Path, width: int) -> None:
    run = MadeRun().write(tmp_path / "run")
    lines = render_report(build_report(run), "text", width).splitlines()
    assert max(len(line) for line in lines if line.startswith(" ")) <= width
    bodies = [line.strip(" -") for line in lines[4:] if line.startswith("  ")]
    short = [line for line in bodies[:-1] if len(line) < width // 3 and not line.endswith((".", ")"))]
    assert len(short) < len(bodies) / 4, "no crumbs of lines that were broken twice"


def test_the_time_left_goes_with_the_pace_of_today(tmp_path: Path) -> None:
    """`status` said 1.6 s a step, 18,990 steps, and 2:54 hours to go."""
    run = MadeRun(workers=1, hosts=1, steps=60).write(tmp_path / "run", is_ended=False)
    start = {
        "kind": "start",
        "time": 1e10,
        "step": 60,
        "steps": 160,
        "workers": 1,
        "hosts": 1,
        "host": "other",
    }
    slow = {name: 10 * seconds for name, seconds in COMPUTING.items()}
    steps = [
        {"kind": "step", "time": 1e10 + step, "step": step, "seconds": 1.0, "targets": 1000, "loss": 2.0}
        | {"phases": slow}
        for step in range(61, 111)
    ]
    append(run, 0, [start, *steps])
    history = read_history(run)
    assert history.wall_pace == pytest.approx(1.0)
