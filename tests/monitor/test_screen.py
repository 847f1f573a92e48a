"""What a person sees while a run is going on."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from echelon.monitor.records import RecordWriter
from echelon.monitor.screen import (
    BarScreen,
    LineScreen,
    Screen,
    Speed,
    describe_record,
    describe_scores,
    follow_records,
    open_screen,
    show_seconds,
)


def step(number: int, **values: Any) -> dict[str, Any]:
    record = {"kind": "step", "time": 0.0, "step": number, "loss": 4.0, "targets": 500, "seconds": 0.5}
    return record | {"learning_rate": 1e-3, "gradient_norm": 1.25} | values


START = {"kind": "start", "time": 0.0, "step": 0, "steps": 25, "workers": 2}
VALID = {
    "kind": "valid",
    "step": 20,
    "bleu": 12.345,
    "chrf": None,
    "loss": 3.21,
    "perplexity": 24.8,
    "seconds": 2.0,
}


def lines_of(records: list[dict[str, Any]], every: int = 10) -> list[str]:
    lines: list[str] = []
    screen = LineScreen(lines.append, every)
    for record in records:
        screen.show(record)
    screen.close()
    return lines


def test_lines_show_every_so_many_steps_the_last_one_and_every_event() -> None:
    records = [START, *(step(number) for number in range(1, 21)), VALID, *(step(n) for n in range(21, 26))]
    shown = lines_of(records)
    assert [line.split("  ETA")[0] for line in shown] == [
        "training starts: 25 steps, 2 workers",
        "step 10  loss 4.000  1,000 tokens/s  rate 1.000e-03  gradient norm 1.250",
        "step 20  loss 4.000  1,000 tokens/s  rate 1.000e-03  gradient norm 1.250",
        "step 20  validation  BLEU 12.35  loss 3.2100  perplexity 24.80  (2.0 s)",
        "step 25  loss 4.000  1,000 tokens/s  rate 1.000e-03  gradient norm 1.250",
    ]
    assert shown[-1].endswith("  ETA 0.0 s")


def test_the_time_left_is_not_known_after_one_step() -> None:
    assert lines_of([START, step(10)])[-1].endswith("  ETA ?")


def test_the_time_left_goes_by_when_steps_were_made_not_by_when_they_are_shown() -> None:
    shown = lines_of([START, step(5, time=100.0), step(10, time=110.0)])
    assert shown[-1].endswith("  ETA 30 s")


def test_a_watch_that_starts_late_knows_the_time_left_at_once() -> None:
    lines: list[str] = []
    screen = LineScreen(lines.append, 10)
    for record in (START, *(step(number, time=2.0 * number) for number in range(1, 10))):
        screen.recall(record)
    screen.show(step(10, time=20.0))
    assert lines[-1].endswith("  ETA 30 s")


def test_a_gradient_or_loss_that_is_not_finite_is_shown_as_such() -> None:
    assert "loss not finite" in lines_of([START, step(10, loss=None, gradient_norm=None)])[-1]
    assert "gradient norm not finite" in lines_of([START, step(10, gradient_norm=None)])[-1]


def test_the_speed_is_that_of_all_steps_but_the_first_twentieth() -> None:
    speed = Speed()
    for number in range(1, 101):
        speed.add(step(number, seconds=10.0 if number <= 5 else 0.5))
    assert speed.per_second == pytest.approx(1000.0)
    assert str(speed) == "1,000 tokens/s"


def test_a_start_forgets_the_steps_that_are_made_again() -> None:
    speed = Speed()
    for number in range(1, 11):
        speed.add(step(number, loss=float(number)))
    speed.start(START | {"step": 4, "unit": "images"})
    assert speed.loss == pytest.approx((4 + 3 + 2) / 3)
    assert str(speed) == "1,000 images/s"


def test_a_terminal_gets_a_bar_and_everything_else_lines() -> None:
    assert isinstance(open_screen(Console(file=io.StringIO(), force_terminal=True), 10), BarScreen)
    assert isinstance(open_screen(Console(file=io.StringIO()), 10), LineScreen)


def test_a_log_on_a_full_disk_stops_nothing() -> None:
    class FullDisk(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    screen = open_screen(Console(file=FullDisk(), force_terminal=False), 1)
    screen.show({"kind": "event", "message": "saved"})
    screen.close()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_brackets_in_messages_are_shown_as_they_are(is_terminal: bool) -> None:
    output = io.StringIO()
    screen = open_screen(Console(file=output, force_terminal=is_terminal, width=200), 10)
    for record in (START, step(10), {"kind": "event", "message": "a [bold]message[/] [/x]"}, step(11), VALID):
        screen.show(record)
    screen.close()
    assert "a [bold]message[/] [/x]" in output.getvalue()
    assert "step 20  validation  BLEU 12.35" in output.getvalue()


def test_the_bar_shows_loss_speed_and_rate() -> None:
    output = io.StringIO()
    screen = BarScreen(Console(file=output, force_terminal=True, width=200, _environ={}))
    screen.show(START)
    screen.show(step(7))
    screen.close()
    assert "loss 4.000  1,000 tokens/s  rate 1.00e-03" in output.getvalue()
    assert "7/25" in output.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_record_of_a_host_that_lacks_what_it_should_have_ends_nothing(is_terminal: bool) -> None:
    whole = [START, step(1), VALID, {"kind": "event", "message": "x"}]
    whole += [{"kind": "sample", "source": "a", "output": "b"}]
    whole += [{"kind": "score", "split": "test", "checkpoint": "best"}]
    for record in whole:
        for name in sorted({*record} - {"kind"}):
            out = io.StringIO()
            screen = open_screen(Console(file=out, width=120, force_terminal=is_terminal), 10)
            screen.show({key: value for key, value in record.items() if key != name})
            screen.recall({key: value for key, value in record.items() if key != name})
            screen.show(record | ({name: None} if name in ("step", "steps", "loss", "gradient_norm") else {}))
            screen.show({"kind": "event", "message": "training goes on"})
            screen.close()
            assert "training goes on" in out.getvalue()


def test_a_screen_that_showed_nothing_can_be_closed() -> None:
    BarScreen(Console(file=io.StringIO(), force_terminal=True)).close()


@pytest.mark.parametrize(
    ("record", "lines"),
    [
        (START, ["training starts: 25 steps, 2 workers"]),
        (START | {"step": 5, "workers": 1}, ["training resumes at step 5: 25 steps, 1 worker"]),
        ({"kind": "sample", "source": "a", "output": "b" * 100}, [f"    a  ->  {'b' * 77}..."]),
        ({"kind": "event", "message": "words"}, ["words"]),
        (
            {"kind": "score", "split": "test", "bleu": 30.0, "chrf": 51.5, "checkpoint": "step-00000020"},
            ["test  BLEU 30.00  chrF 51.50  (step-00000020)"],
        ),
        ({"kind": "checkpoint", "step": 3}, []),
        ({"kind": "end", "step": 3}, []),
    ],
)
def test_records_in_words(record: dict[str, Any], lines: list[str]) -> None:
    assert describe_record(record) == lines


def test_scores_that_are_not_there_are_left_out() -> None:
    assert describe_scores({"loss": 1.0, "bleu": None, "other": 3}) == "loss 1.0000"
    assert describe_scores({}) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.4, "9.4 s"),
        (9.97, "10 s"),
        (12.4, "12 s"),
        (59.6, "1:00"),
        (185.0, "3:05"),
        (3599.7, "1:00:00"),
        (7269.0, "2:01:09"),
        (360_000.0, "100:00:00"),
    ],
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert show_seconds(seconds) == words


def test_a_screen_opened_late_shows_the_loss_and_speed_of_all_steps(tmp_path: Path) -> None:
    """`watch` attached late, and `train` after a resume, knew only the steps that they saw."""
    path = tmp_path / "worker-0.jsonl"
    made = [
        step(number, loss=float(number), seconds=0.25 if number <= 50 else 0.5) for number in range(1, 61)
    ]
    whole = lines_of([START, *made])[-1]
    with contextlib.closing(RecordWriter(path)) as writer:

        def write(record: dict[str, Any]) -> None:
            writer.write(
                record["kind"], **{key: record[key] for key in record if key not in ("kind", "time")}
            )

        for record in (
            START | {"steps": 60},
            *made[:58],
            step(59, loss=500.0),
            {"kind": "step", "step": None},
        ):
            write(record)
        writer.flush()
        lines: list[str] = []
        screens: list[Screen] = [
            LineScreen(lines.append, 10),
            BarScreen(Console(file=io.StringIO(), force_terminal=True, width=120)),
        ]
        readers = [follow_records(path, screen) for screen in screens]
        assert not lines, "what was before is not shown"
        for record in (START | {"step": 58, "steps": 60}, *made[58:]):
            write(record)
    for reader, screen in zip(readers, screens, strict=True):
        for record in reader.read():
            screen.show(record)
        screen.close()
    assert lines[-1].split("  rate")[0] == whole.split("  rate")[0]
    assert "loss 59.000" in lines[-1]


def test_a_bar_opened_in_the_middle_of_a_session_knows_how_many_steps_there_are(tmp_path: Path) -> None:
    out = io.StringIO()
    screen = BarScreen(Console(file=out, force_terminal=True, width=120))
    screen.recall(START)
    screen.recall(step(1))
    screen.show(step(2))
    screen.close()
    assert "2/25" in out.getvalue()
