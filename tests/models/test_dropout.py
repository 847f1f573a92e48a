from __future__ import annotations

import pytest
import torch

from echelon.models.dropout import Drop, Dropout, draw_kept, random_words


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_share_and_mean_are_right(dtype: torch.dtype, share: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1001, dtype=dtype)  # not a multiple of the four numbers that share a random word

    dropped = Dropout(share)(x)

    assert dropped.dtype == dtype
    assert (dropped == 0).float().mean().item() == pytest.approx(share, abs=0.002)
    assert dropped.float().mean().item() == pytest.approx(1, abs=0.02)
    assert len(dropped.unique()) == 2


def test_numbers_that_share_a_random_word_fall_independently() -> None:
    torch.manual_seed(0)
    kept = draw_kept(torch.empty(500_000, 4), Drop(1 << 15, seed=5))

    correlations = torch.corrcoef(kept.T)

    torch.testing.assert_close(correlations, torch.eye(4), rtol=0, atol=0.01)


def test_words_are_those_of_splitmix64() -> None:
    """The first outputs of the published generator for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]

    words = random_words(1234567, 4).tolist()

    assert [word % 2**64 for word in words] == published


def test_a_row_falls_alike_whatever_its_neighbours() -> None:
    """Rows begin new words, so a kernel can draw one row alone."""
    drop = Drop(1 << 15, seed=3)

    wide = draw_kept(torch.empty(6, 4), drop)
    narrow = draw_kept(torch.empty(2, 3, 3), drop)

    assert torch.equal(narrow.view(6, 3), wide[:, :3])


def test_gradient_falls_where_the_number_fell() -> None:
    x = torch.randn(50, 7, requires_grad=True)

    dropped = Dropout(0.4)(x)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)

    assert torch.equal(gradient == 0, dropped == 0)
    torch.testing.assert_close(gradient * x, dropped)


def test_the_seed_decides() -> None:
    x, dropout = torch.ones(100), Dropout(0.5)

    torch.manual_seed(7)
    first = dropout(x)
    torch.manual_seed(7)
    second = dropout(x)

    assert torch.equal(first, second)
    assert not torch.equal(first, dropout(x))


def test_nothing_falls_in_evaluation() -> None:
    x = torch.randn(100)

    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize(("share", "levels"), [(1e-9, 1), (1 - 1e-9, 65_535)])
def test_shares_too_near_to_none_or_all_are_the_nearest_that_can_be_drawn(share: float, levels: int) -> None:
    assert Dropout(share).draw().dropped_levels == levels


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="dropout of"):
        Dropout(share)
