"""What "auto" looks at before it chooses."""

from __future__ import annotations

import pytest
from tests.sample_recipe import sample_recipe

from echelon.resolve.exchange_choice import CANDIDATES, Candidate
from echelon.train.exchange.measure import candidates, card_share


def test_only_what_the_recipe_can_be_trained_with_is_looked_at() -> None:
    assert candidates(sample_recipe("train.exchange=auto")) == list(CANDIDATES)
    fp16 = sample_recipe("train.exchange=auto", "train.precision=fp16")
    assert candidates(fp16) == ["all_reduce", "compressed bf16", "local"]
    averaged = sample_recipe("train.exchange=auto", "train.average_decay=0.99")
    assert candidates(averaged) == ["all_reduce", "compressed bf16", "compressed int8", "low_rank"]


@pytest.mark.parametrize(
    ("name", "local_ranks", "share"),
    [
        ("all_reduce", [0, 0, 0, 0], 2 * 3 / 4),
        ("compressed int8", [0, 0, 0, 0], 2 * 3 / 4),
        ("all_reduce", [0, 1, 0, 1], 2 * 1 / 2),
        ("compressed bf16", [0, 1, 0, 1], 2 * 1 / 2),
        ("local", [0, 1, 0, 1], 2 * 1 / 2),
        ("low_rank", [0, 1, 0, 1], 2 * 1 / 2),
        ("all_reduce", [0, 1, 0], 2 * 2 / 3),
        ("compressed bf16", [0, 1, 0], 2 * 2 * 1 / 3),
    ],
)
def test_hosts_that_add_up_by_themselves_first_send_what_one_worker_would(
    name: Candidate, local_ranks: list[int], share: float
) -> None:
    assert card_share(name, local_ranks) == pytest.approx(share)
