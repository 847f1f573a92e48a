"""The eleven answers on a run of three hosts, each recomputed from records and files without the code of `report`."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest

from echelon.explain.report import build_report
from echelon.lab.lab import Lab
from tests.lab.training import Training

pytestmark = pytest.mark.slow

Record = dict[str, Any]
STEPS = 40
FALLING = ("schedule.learning_rate=1e-3", "schedule.warmup_steps=20")
"""A loss that falls to the end."""
ROUNDED = 0.006
"""Numbers are shown with three digits."""
UNITS = {
    "hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "s": 1.0, "ms": 1e-3,
    "GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0, "Gbit/s": 1.25e8, "Mbit/s": 1.25e5, "%": 0.01,
}  # fmt: skip
_NUMBER = r"([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)"


@dataclass(frozen=True)
class AnsweredRun:
    """A run's answers by number, with their evidence, and the files that they are recomputed from."""

    folder: Path
    corpus: Path
    answers: dict[int, list[str]]
    workers: list[list[Record]]

    def numbers(self, number: int, pattern: str) -> tuple[Any, ...]:
        """What an answer says: `#` in the pattern is a number, with the unit that follows it, if any."""
        units = "|".join(UNITS)
        expression = pattern.replace("(", r"\(").replace(")", r"\)").replace("+-", "")
        expression = expression.replace("#", rf"{_NUMBER}(?: ?({units})\b| ?(%))?")
        text = "\n".join(self.answers[number])
        found = re.search(expression, text, re.MULTILINE)
        assert found is not None, f"no {pattern!r} in answer {number}:\n{text}"
        values = found.groups()
        return tuple(
            float(values[at].replace(",", "")) * UNITS.get(values[at + 1] or values[at + 2] or "", 1.0)
            for at in range(0, len(values), 3)
        )

    def of(self, kind: str, rank: int = 0) -> list[Record]:
        return [record for record in self.workers[rank] if record["kind"] == kind]

    def typical(self, rank: int = 0) -> list[Record]:
        """The steps that speed is measured on: without the first twentieth."""
        return self.of("step", rank)[math.ceil(0.05 * STEPS) :]

    def mean_phase(self, *phases: str) -> float:
        """Seconds of a step, over workers and steps."""
        return fmean(
            sum(step["phases"].get(phase, 0.0) for phase in phases)
            for rank in range(3)
            for step in self.typical(rank)
        )

    @property
    def start(self) -> Record:
        return self.of("start")[0]

    @property
    def seconds_per_step(self) -> float:
        return fmean(step["seconds"] for step in self.typical())


def read_lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def close(value: float) -> Any:
    return pytest.approx(value, rel=ROUNDED, abs=1e-9)


def check_1_duration(run: AnsweredRun) -> None:
    start, end = run.start, run.of("end")[-1]
    whole = end["time"] - start["time"] + start["setup_seconds"]
    assert run.numbers(1, "It took # for # steps") == (close(whole), STEPS)
    spent: dict[str, float] = {"starting and loading": start["setup_seconds"]}
    names = {
        "evaluation": "scoring",
        "checkpoint": "checkpoints",
        "data": "waiting for data",
        "other": "other work",
    }
    for record in run.workers[0]:
        for phase, seconds in record.get("phases", {}).items():
            spent[names.get(phase, phase)] = spent.get(names.get(phase, phase), 0.0) + seconds
    for name, seconds in spent.items():
        said, share = run.numbers(1, rf"^{name}[^:\n]*: # (#)")
        assert said == close(seconds), name
        assert share == pytest.approx(seconds / whole, abs=0.006), name
    listed = [run.numbers(1, f"^{line.partition(':')[0]}: #")[0] for line in run.answers[1][1:-1]]
    assert sum(listed) == close(whole), "nothing is missing"


def check_2_trained(run: AnsweredRun) -> None:
    losses = [step["loss"] for step in run.of("step")]
    now, later, low, high = run.numbers(2, r"training loss from # to about # (90% interval: # to #)")
    assert now == pytest.approx(fmean(losses[-3:]), rel=1e-3)
    assert 0 < low <= later <= high
    assert later <= now
    (gain,) = run.numbers(2, r"loss by \w+ #")
    assert gain == pytest.approx((now - later) / now, abs=0.006)
    best = min(run.of("valid"), key=lambda record: record["loss"])
    found = run.numbers(2, "best validation loss was # at step #, of # scorings")
    assert found == (pytest.approx(best["loss"], rel=1e-3), best["step"], len(run.of("valid")))


def check_3_overfitting(run: AnsweredRun) -> None:
    valid = run.of("valid")
    best = min(valid, key=lambda record: record["loss"])
    assert run.numbers(3, "validation loss # at step #; its best was # at step #") == (
        pytest.approx(valid[-1]["loss"], rel=1e-3),
        valid[-1]["step"],
        pytest.approx(best["loss"], rel=1e-3),
        best["step"],
    )
    if valid[-1]["loss"] <= 1.02 * best["loss"]:
        assert run.answers[3][0].startswith("No")
    train_loss, gap = run.numbers(3, "training loss at the same step: #, a gap of #")
    assert gap == pytest.approx(valid[-1]["loss"] - train_loss, rel=0.02, abs=2e-3)


def check_4_devices(run: AnsweredRun) -> None:
    whole = run.mean_phase("data", "forward", "backward", "communication", "optimiser", "checkpoint", "other")
    computing = run.mean_phase("forward", "backward", "optimiser") / whole
    (said,) = run.numbers(4, "# of a step is computing")
    assert said == pytest.approx(computing, abs=0.006)
    flops, of_peak, peak = run.numbers(4, r"# FLOPs per step are # of the peak (# GFLOP")
    assert flops == close(run.start["flops_per_step"])
    assert of_peak == pytest.approx(flops / run.seconds_per_step / (peak * 1e9), rel=0.06)
    measured = [max(r.get("peak_flops", 0.0) for r in records) for records in run.workers]
    assert peak * 1e9 == pytest.approx(sum(measured), rel=0.06)


def check_5_network(run: AnsweredRun) -> None:
    by_step = zip(*(run.typical(rank) for rank in range(3)), strict=True)
    least = fmean(min(step["phases"]["communication"] for step in steps) for steps in by_step)
    whole = run.mean_phase("data", "forward", "backward", "communication", "optimiser", "checkpoint", "other")
    share, waiting = run.numbers(
        5, r"# of a step is communication that backward did not hide; .*slower workers (#)"
    )
    assert share == pytest.approx(least / whole, abs=0.006)
    assert waiting == pytest.approx((run.mean_phase("communication") - least) / whole, abs=0.006)
    verdict = "No" if share <= 0.2 else "Yes|In part"
    assert re.match(verdict, run.answers[5][0])


def check_6_schedule(run: AnsweredRun) -> None:
    rates = {step["step"]: step["learning_rate"] for step in run.of("step")}
    peak = max(rates, key=lambda step: rates[step])
    if rates[STEPS] >= rates[peak]:
        assert run.numbers(6, "the highest rate, #") == (close(rates[STEPS]),)
        return
    assert run.numbers(6, "peaks at # near step # and is # at the last step") == (
        close(rates[peak]),
        peak,
        close(rates[STEPS]),
    )


def check_7_training_set(run: AnsweredRun) -> None:
    texts = {side: (run.corpus / f"train.{side}").read_text() for side in ("en", "de")}
    (size, pairs, source, target) = run.numbers(7, "# in # line pairs: # source and # target tokens")
    prepared = Path(json.loads((run.folder / "data.json").read_text())["folder"])
    (dropped, given) = run.numbers(7, "# of # lines were dropped")
    assert given == len(texts["en"].splitlines())
    assert pairs == given - dropped
    assert pairs == sum(file.stat().st_size // 4 for file in prepared.glob("train-*.source.lengths"))
    assert source == sum(file.stat().st_size // 2 for file in prepared.glob("train-*.source.tokens"))
    assert target == sum(file.stat().st_size // 2 for file in prepared.glob("train-*.target.tokens"))
    if not dropped:
        assert size == pytest.approx(sum(len(text.encode()) - pairs for text in texts.values()), rel=0.02)
        (words,) = run.numbers(7, r"en (source): .* of text, # words")
        assert words == len(texts["en"].split())


def newest_checkpoint(run: AnsweredRun) -> dict[str, Path]:
    folder = max((run.folder / "checkpoints").iterdir())
    return {file.name: file for file in folder.iterdir() if not file.name.endswith("checksum.json")}


def check_8_files(run: AnsweredRun) -> None:
    files = newest_checkpoint(run)
    assert sum(name.startswith("optimiser-") for name in files) == 3, "each host wrote a part"
    for name, file in files.items():
        assert run.numbers(8, f"{re.escape(name)}: #") == (close(file.stat().st_size),)
        assert file.with_name(f"{name}.checksum.json").is_file()


def count_numbers(file: Path, prefix: str = "") -> int:
    """How many numbers a safetensors file has in tensors with such names, from its header."""
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    return sum(
        math.prod(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and name.startswith(prefix)
    )


def check_9_size(run: AnsweredRun) -> None:
    files = newest_checkpoint(run)
    size, parameters, each = run.numbers(9, "^#: # parameters x # bytes")
    assert size == close(sum(file.stat().st_size for file in files["state.json"].parent.iterdir()))
    assert parameters == count_numbers(files["model.safetensors"]) == run.start["parameters"]
    averages = sum(
        count_numbers(file, "exp_avg") for name, file in files.items() if name.startswith("optimiser-")
    )
    assert each == 12
    assert averages == 2 * parameters


def check_10_step(run: AnsweredRun) -> None:
    seconds = [step["seconds"] for step in run.typical()]
    targets = fmean(step["targets"] for step in run.typical())
    assert run.numbers(10, "mean #, p50 #, p99 #") == (
        close(fmean(seconds)),
        close(median(seconds)),
        close(float(np.quantile(seconds, 0.99))),
    )
    slots = sum(fmean(step["slots"] for step in run.typical(rank)) for rank in range(3))
    assert run.numbers(10, "from # slots with # target tokens together, shared by # workers") == (
        pytest.approx(slots),
        pytest.approx(targets, abs=0.51),
        3,
    )
    (speed,) = run.numbers(10, "# target tokens a second")
    assert speed == pytest.approx(targets / fmean(seconds), rel=1e-3, abs=0.51)


def check_11_traffic(run: AnsweredRun) -> None:
    expected = 4 / 3 * run.start["exchanged_bytes"]  # a ring of three: 2 (n - 1) / n of the gradient
    counted = median(step["received"] for step in run.typical())
    said, off, least, at_rate = run.numbers(
        11, r"# a step went .*, # against the #[^;]*; at the link's rate those .* take #"
    )
    assert (said, least) == (close(counted), close(expected))
    assert off == pytest.approx(counted / expected - 1, abs=6e-4)
    assert 0 < off < 0.3, "headers and acknowledgements"
    (link,) = (
        r["bytes_per_s"] for r in read_lines(run.folder / "records" / "launcher.jsonl") if r["kind"] == "link"
    )
    assert at_rate == close(expected / max(link, counted / run.seconds_per_step))


CHECKS: tuple[Callable[[AnsweredRun], None], ...] = (
    check_1_duration,
    check_2_trained,
    check_3_overfitting,
    check_4_devices,
    check_5_network,
    check_6_schedule,
    check_7_training_set,
    check_8_files,
    check_9_size,
    check_10_step,
    check_11_traffic,
)


def test_each_of_the_eleven_answers_follows_from_the_records(
    lab: Lab, train: Callable[..., Training], recipe: Path
) -> None:
    settings = (f"train.steps={STEPS}", "evaluate.every=8", "model.d_model=128", "model.d_ff=256", *FALLING)
    training = train(lab.shared, *(word for setting in settings for word in ("--set", setting)))
    training.finish()
    answers = build_report(training.run).answers
    run = AnsweredRun(
        training.run.path,
        recipe.parent,
        {answer.number: [answer.answer, *answer.evidence] for answer in answers if answer.number},
        [read_lines(training.run.worker_records(rank)) for rank in range(3)],
    )
    assert sorted(run.answers) == list(range(1, 12))
    for check in CHECKS:
        check(run)
