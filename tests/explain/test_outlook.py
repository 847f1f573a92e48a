"""What more training would bring, as a report tells it: bounded, with an interval, and for the score too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from echelon.explain.answers import Answer
from echelon.explain.history import read_history
from echelon.explain.outlook import Outlook, loss_outlook, score_outlook
from echelon.explain.report import build_report
from tests.explain.made_runs import MadeRun

Scorings = list[tuple[int, float, float]]


def trained(folder: Path, **values: Any) -> Answer:
    report = build_report(MadeRun(**values).write(folder / "run"))
    return next(answer for answer in report.answers if answer.key == "trained")


def scorings(score: Any, loss: Any = lambda step: 2.0 + 10 / step) -> Scorings:
    return [(step, loss(step), score(step)) for step in range(6, 61, 6)]


def test_no_loss_falls_by_more_than_all_of_it(tmp_path: Path) -> None:
    """A rate that fell at the end leaves the last losses far below every fit: 202% less was promised once."""

    def loss(step: int) -> float:
        return 2.0 * step**-0.3 if step < 50 else 0.001

    found = trained(tmp_path, loss=loss, valid=())
    shares = [float(share) for share in re.findall(r"([\d.]+)%", found.answer)]
    assert shares
    assert all(0 <= share <= 100 for share in shares), found.answer
    outlook = loss_outlook(read_history(MadeRun(loss=loss).write(tmp_path / "other")))
    assert outlook is not None
    assert 0 < outlook.later.low <= outlook.later.expected <= outlook.later.high


def test_the_answer_speaks_of_the_score(tmp_path: Path) -> None:
    found = trained(tmp_path, valid=scorings(lambda step: 60 - 200 / step))
    assert found.verdict == "no"
    assert "the validation BLEU is 56.67, and training twice as long would bring it to about" in found.answer
    assert any("90% interval" in line and "BLEU" in line for line in found.evidence)


def test_the_headline_has_the_interval_of_the_evidence_also_if_the_score_may_fall(tmp_path: Path) -> None:
    """An interval of the gain was cut off at 0: "0.0 to 3.1 points"."""
    found = trained(tmp_path, valid=scorings(lambda step: 60 - 120 / step + (-1) ** (step // 6)))
    interval = re.compile(r"about [\d.]+ \(90% interval: ([\d.]+) to ([\d.]+)\)")
    shown = interval.search(found.answer)
    assert shown is not None, found.answer
    assert any(shown[0] in line for line in found.evidence), found.evidence
    now = re.search(r"BLEU is ([\d.]+)", found.answer)
    assert now is not None
    assert float(shown[1]) < float(now[1]) < float(shown[2])


def test_a_perfect_score_has_no_interval(tmp_path: Path) -> None:
    found = trained(tmp_path, valid=scorings(lambda step: min(100.0, 90 + step)))
    assert (
        found.answer == "Yes, it is as good as it gets: the validation BLEU is 100.00, the highest there is."
    )


def test_a_score_stays_below_100(tmp_path: Path) -> None:
    outlook = score_outlook(
        read_history(MadeRun(valid=scorings(lambda step: 100 - 300 / step)).write(tmp_path / "run"))
    )
    assert isinstance(outlook, Outlook)
    assert outlook.now <= outlook.later.expected <= outlook.later.high <= 100
    assert 0 <= outlook.gain.low <= outlook.gain.expected <= outlook.gain.high <= 100 - outlook.now


@pytest.mark.parametrize("best", [99.8, 100.0, 34.0])
def test_a_run_that_is_as_good_as_it_gets_is_called_that(tmp_path: Path, best: float) -> None:
    """Even if its loss, near zero, could still fall by a large part of itself."""
    found = trained(
        tmp_path,
        loss=lambda step: 3.0 / step,
        valid=scorings(lambda step: min(best, best - 8 + 0.5 * step)),
    )
    assert found.verdict == "yes"
    assert f"it is as good as it gets: the validation BLEU is {best:.2f}" in found.answer


def test_too_little_data_is_said_to_be(tmp_path: Path) -> None:
    found = trained(tmp_path, steps=5, valid=())
    assert (found.verdict, found.answer) == (
        "unknown",
        "There is too little data to tell: 5 steps have a loss, and at least 8 are needed.",
    )
    few = trained(tmp_path / "few", valid=[(20, 3.0, 20.0), (40, 2.9, 21.0)])
    assert any("scored 2 times, too seldom to tell how BLEU would change" in line for line in few.evidence)
    assert few.answer.endswith("; how the validation BLEU, now 21.00, would change is not known.")
    early = trained(tmp_path / "early", valid=scorings(lambda step: 0.01 * step))
    assert any("has only begun to rise" in line for line in early.evidence)


def test_a_model_that_is_only_less_sure_does_not_overfit(tmp_path: Path) -> None:
    valid: Scorings = [
        (10, 0.5, 90.0),
        (20, 0.02, 99.0),
        (30, 0.03, 99.1),
        (40, 0.03, 99.2),
        (60, 0.03, 99.2),
    ]
    report = build_report(MadeRun(valid=valid, loss=lambda step: 1.0 / step).write(tmp_path / "run"))
    answers = {answer.key: answer for answer in report.answers}
    assert answers["overfitting"].verdict == "no"
    assert "but BLEU has stayed at its best" in answers["overfitting"].answer
    assert "as good as it gets" in answers["trained"].answer


def test_an_unfinished_run_is_told_to_be_and_what_its_planned_end_would_bring(tmp_path: Path) -> None:
    def cut(folder: Path, at: int) -> Answer:
        run = MadeRun(steps=60, valid=((20, 3.9, 5.0),)).write(folder, is_ended=False)
        lines = run.worker_records(0).read_text().splitlines(keepends=True)
        kept = [line for line in lines if (json.loads(line).get("step") or 0) <= at]
        run.worker_records(0).write_text("".join(kept))
        return next(answer for answer in build_report(run).answers if answer.key == "trained")

    late = cut(tmp_path / "late", 40)
    assert "training to the planned end would lower" in late.answer
    assert late.answer.endswith("It stands at step 40 of the 60 that are planned.")
    assert late.evidence[0].startswith("another 20 steps (to step 60, the planned end)")
    assert late.evidence[-1].endswith("of 1 scoring")
    early = cut(tmp_path / "early", 12)
    assert "training twice as long" in early.answer, "a fifth of a curve is too little for its end"
    assert early.answer.endswith("It stands at step 12 of the 60 that are planned.")


def test_a_score_that_cannot_rise_decides_after_few_scorings(tmp_path: Path) -> None:
    found = trained(tmp_path, loss=lambda step: 0.1 / step**2, valid=[(20, 0.1, 99.0), (60, 0.01, 99.8)])
    assert found.verdict == "yes"
    assert found.answer == "Yes, it is as good as it gets: the validation BLEU is 99.80 of 100."


def test_a_constant_rate_is_said_to_be_one(tmp_path: Path) -> None:
    overrides = ("schedule={kind='fixed', learning_rate=1e-3}",)
    report = build_report(MadeRun(overrides=overrides).write(tmp_path / "run"))
    found = next(answer for answer in report.answers if answer.key == "schedule")
    assert found.answer == "The rate is constant. It is 0.001 in every step."
