"""What "auto" chooses, from made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echelon.resolve.exchange_choice import Candidate, Measured, choose, fastest_of, show_s

MEGABIT = 1e6 / 8
PARAMETERS = 20e6
MEASURED = Measured(
    slots=8,
    workers=2,
    hosts=2,
    slot_s=0.9,
    optimiser_s=0.05,
    line_bytes_per_s=1000 * MEGABIT,
    latency_s=0.0003,
    cpu_s_per_byte=1e-9,
    num_bytes={
        "all_reduce": 4 * PARAMETERS,
        "compressed bf16": 2 * PARAMETERS,
        "compressed int8": PARAMETERS,
        "low_rank": 0.05 * PARAMETERS,
        "local": 2 * PARAMETERS,
    },
    own_s={
        "all_reduce": 0.0,
        "compressed bf16": 0.1,
        "compressed int8": 0.3,
        "low_rank": 0.05,
        "local": 0.2,
    },
    alone={"host1": 7.25, "host2": 7.25},
    steps_between=32,
    steps_behind=8,
)
ALL = ["exact", "compressed", "low_rank", "local"]


def over(megabits: float) -> Measured:
    return replace(MEASURED, line_bytes_per_s=megabits * MEGABIT)


@pytest.mark.parametrize(
    ("megabits", "chosen"), [(10_000, "all_reduce"), (1000, "all_reduce"), (100, "low_rank"), (12, "local")]
)
def test_the_slower_the_line_the_less_exact_the_exchange(megabits: float, chosen: Candidate) -> None:
    choice = choose(over(megabits), ALL)  # type: ignore[arg-type]
    assert (choice.exchange, choice.hosts) == (chosen, None)


def test_only_what_is_allowed_is_chosen_and_what_more_would_give_is_said() -> None:
    choice = choose(over(200), ["exact"])
    assert (choice.exchange, choice.hosts) == ("all_reduce", None)
    assert 'train.exchange_may = ["exact", "low_rank"] it would take' in choice.reason


def test_of_two_formats_the_smaller_is_taken_where_it_pays() -> None:
    for megabits, wire in ((400, "bf16"), (150, "int8")):
        assert choose(over(megabits), ["exact", "compressed"]).exchange == f"compressed {wire}"


def test_on_one_host_nothing_is_left_out() -> None:
    choice = choose(over(1), ["exact", "compressed"])
    assert (choice.exchange, choice.hosts) == ("all_reduce", 1)
    assert "compressed int8, the best that is allowed" in choice.reason


def test_what_the_recipe_cannot_have_is_not_advised() -> None:
    measured = over(200)
    few: dict[Candidate, float] = {"all_reduce": measured.num_bytes["all_reduce"]}
    assert "exchange_may" not in choose(replace(measured, num_bytes=few), ["exact"]).reason


def test_where_nothing_allowed_pays_one_host_trains() -> None:
    choice = choose(over(20), ["exact"])
    assert choice.hosts == 1
    assert choice.reason.startswith(
        'train.exchange = "auto" trains on one of 2 hosts, host1: over a link of 20 Mbit/s'
    )
    assert "takes 7.2 s on that one" in choice.reason


def test_the_one_host_that_trains_is_the_fastest_not_the_first() -> None:
    measured = replace(MEASURED, alone={"host1": 1.49, "host2": 0.25})
    assert (measured.fastest, measured.alone_s) == ("host2", 0.25)
    choice = choose(measured, ["exact"])
    assert choice.hosts == 1, "with the slow one it would be slower"
    assert "trains on one of 2 hosts, host2: " in choice.reason
    assert "takes 250 ms on that one" in choice.reason


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, ["c"]), (2, ["c", "d"]), (3, ["a", "c", "d"]), (4, ["a", "b", "c", "d"])]
)
def test_of_hosts_that_are_about_as_fast_the_first_are_taken(count: int, chosen: list[str]) -> None:
    alone = {"a": 2.0, "b": 2.1, "c": 1.0, "d": 1.05}
    assert sorted(fastest_of(["a", "b", "c", "d"], alone, count)) == chosen


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (126.4, "126 s"),
        (12.3, "12 s"),
        (1.25, "1.2 s"),
        (0.25, "250 ms"),
        (0.0123, "12 ms"),
        (0.0012, "1.2 ms"),
    ],
)
def test_times_of_steps_are_plain_numbers(seconds: float, words: str) -> None:
    assert show_s(seconds) == words


def test_a_host_that_was_not_measured_is_taken_last() -> None:
    assert fastest_of(["new", "old"], {"old": 3.0}, 1) == ["old"]
    assert fastest_of(["new", "newer"], {"old": 3.0}, 1) == ["new"]


def test_two_hosts_are_never_taken_where_they_would_be_slower() -> None:
    for megabits in (1, 5, 20, 50, 100, 300, 1000):
        for allowed in (["exact"], ["exact", "compressed"], ALL):
            measured = over(megabits)
            choice = choose(measured, allowed)  # type: ignore[arg-type]
            assert choice.hosts == 1 or measured.step_s(choice.exchange) < measured.alone_s


def test_buckets_are_smaller_the_sooner_one_can_begin() -> None:
    far = replace(MEASURED, latency_s=0.02)
    assert 2**20 <= MEASURED.bucket_bytes < far.bucket_bytes <= 2**24
