"""What "auto" chooses, from made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echelon.train.exchange.choice import Candidate, Measured, choose

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
        'train.exchange = "auto" trains on one of 2 hosts: over a line of 20 Mbit/s'
    )
    assert "takes 7.2 s on one" in choice.reason


def test_two_hosts_are_never_taken_where_they_would_be_slower() -> None:
    for megabits in (1, 5, 20, 50, 100, 300, 1000):
        for allowed in (["exact"], ["exact", "compressed"], ALL):
            measured = over(megabits)
            choice = choose(measured, allowed)  # type: ignore[arg-type]
            assert choice.hosts == 1 or measured.step_s(choice.exchange) < measured.alone_s


def test_buckets_are_smaller_the_sooner_one_can_begin() -> None:
    far = replace(MEASURED, latency_s=0.02)
    assert 2**20 <= MEASURED.bucket_bytes < far.bucket_bytes <= 2**24
