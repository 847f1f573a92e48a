"""What a host's samples say, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from echelon.explain.hosts import COLUMNS, host_state, host_table

SAMPLE: dict[str, Any] = {
    "host": "host1",
    "seconds": 2.0,
    "processors": 0.5,
    "memory": 200 * 2**30,
    "memory_total": 256 * 2**30,
    "disk_read": 4_000_000,
    "disk_written": 0,
    "card": "eth0",
    "cards": {"eth0": [25_000_000, 2_500_000], "lo": [9, 9]},
    "gpus": [{"busy": 0.9, "celsius": 61}, {"busy": 0.7, "celsius": 74}],
}


def test_a_host_is_shown_with_everything_that_was_measured() -> None:
    heading, ((host, cells),) = host_table([SAMPLE])
    assert (heading, host) == (["host", *COLUMNS], "host1")
    assert cells == [
        "50%",
        "80% (2)",
        "74 °C",
        "200.0 of 256 GiB",
        "2 MB/s",
        "0 bytes/s",
        "eth0",
        "100 Mbit/s",
        "10 Mbit/s",
    ]


def test_what_nobody_measured_has_no_column() -> None:
    without: dict[str, Any] = {
        "gpus": [],
        "disk_read": None,
        "disk_written": None,
        "memory": None,
        "card": None,
    }
    assert host_table([SAMPLE | without])[0] == ["host", "processors", "in", "out"]


def test_a_gpu_that_does_not_tell_its_load_is_a_gpu_all_the_same() -> None:
    state = host_state(SAMPLE | {"gpus": [{"memory": 0.1}, {}]})
    assert (state.gpus, state.gpus_busy, state.busy, state.celsius) == (2, None, None, None)
    assert state.cells()["GPUs"] == "- (2)"


def test_a_sample_of_somebody_elses_making_is_a_sample() -> None:
    state = host_state({"kind": "host", "processors": "many", "memory": float("inf")})
    assert (state.host, state.processors, state.memory) == ("", None, None)


@pytest.mark.parametrize("cards", [7, ["eth0"], {"eth0": 7}, {"eth0": ["many", "few"]}, {"eth0": [1]}])
def test_cards_and_gpus_in_another_form_are_not_counted(cards: object) -> None:
    state = host_state(SAMPLE | {"card": "eth0", "cards": cards, "gpus": 3})
    assert (state.received, state.sent, state.gpus) == (0.0, 0.0, 0)


def test_the_last_sample_of_a_host_counts() -> None:
    _, rows = host_table([SAMPLE, SAMPLE | {"processors": 0.75}], ("processors",))
    assert rows == [("host1", ["75%"])]


def test_a_host_that_fell_silent_while_others_went_on_is_shown_as_lost() -> None:
    one, two = SAMPLE | {"host": "host1"}, SAMPLE | {"host": "host2"}
    _, rows = host_table([one | {"time": 1000.0}, two | {"time": 1000.0}, two | {"time": 1130.0}])
    assert [name for name, _ in rows] == ["host1 (lost, silent for 2:10)", "host2"]
    _, rows = host_table([one | {"time": 1000.0}, two | {"time": 1010.0}])
    assert [name for name, _ in rows] == ["host1", "host2"]
