from __future__ import annotations

import pytest
import torch
from torch import Tensor

from echelon.models.attention import attend_fused, attend_plainly, join_heads, split_heads
from echelon.models.dropout import Dropout
from echelon.models.sequences import Sequences

KEYS = Sequences.of([[4] * 6, [4] * 2, [4] * 1])


def make_heads(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 3, 2, 6, 8).to(dtype)
    return q, k, v


@pytest.mark.parametrize("bias", [None, KEYS.padding_bias_B11L, KEYS.causal_bias_LL])
def test_both_ways_are_equal(bias: Tensor | None) -> None:
    heads = make_heads()

    torch.testing.assert_close(attend_plainly(*heads, bias, None), attend_fused(*heads, bias, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [None, KEYS.padding_bias_B11L, KEYS.causal_bias_LL])
@pytest.mark.parametrize("way", [attend_plainly, attend_fused])
def test_low_precision_is_finite_and_close(way: object, bias: Tensor | None, dtype: torch.dtype) -> None:
    assert callable(way)

    mixed = way(*make_heads(dtype), bias, None)

    assert mixed.dtype == dtype
    exact = attend_plainly(*make_heads(), bias, None)
    torch.testing.assert_close(mixed.float(), exact, rtol=0, atol=0.05)


def test_softmax_is_in_float32_also_without_a_bias() -> None:
    heads = make_heads(torch.bfloat16)

    assert torch.equal(attend_plainly(*heads, None, None), attend_plainly(*heads, torch.zeros(6, 6), None))


@pytest.mark.parametrize("way", [attend_plainly, attend_fused])
def test_dropout_acts_on_the_weights_while_training(way: object) -> None:
    assert callable(way)
    heads, dropout = make_heads(), Dropout(0.3)

    mean = torch.stack([way(*heads, None, dropout) for _ in range(3000)]).mean(0)

    exact = attend_plainly(*heads, None, None)
    torch.testing.assert_close(mean, exact, rtol=0, atol=0.08)
    assert not torch.equal(way(*heads, None, dropout), exact)
    torch.testing.assert_close(way(*heads, None, dropout.eval()), exact)


def test_joining_undoes_splitting() -> None:
    x_BLD = torch.randn(3, 5, 8)

    q, k = split_heads(x_BLD, parts=2, heads=2)

    assert q.shape == (3, 2, 5, 2)
    assert torch.equal(torch.cat([join_heads(q), join_heads(k)], dim=2), x_BLD)
