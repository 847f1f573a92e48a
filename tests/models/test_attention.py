from __future__ import annotations

import pytest
import torch
from torch import Tensor

from echelon.models.attention import attend_fused, attend_packed, attend_plainly, join_heads, split_heads
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


QUERIES = Sequences.of([[4] * 2, [4] * 5, [4] * 3])


def attend_to_rectangles(q: Tensor, k: Tensor, v: Tensor, queries: Sequences, is_causal: bool) -> Tensor:
    """The same as attend_packed(), with padding."""
    heads = [of.pad(x).transpose(1, 2) for of, x in ((queries, q), (KEYS, k), (KEYS, v))]
    bias = KEYS.causal_bias_LL if is_causal else KEYS.padding_bias_B11L
    return queries.unpad(attend_plainly(heads[0], heads[1], heads[2], bias, None).transpose(1, 2))


def random_packed(tokens: int, device: str) -> Tensor:
    torch.manual_seed(tokens)
    return torch.randn(tokens, 2, 8, device=device, requires_grad=True)


def compare_with_rectangles(device: str, queries: Sequences, is_causal: bool) -> None:
    q, k, v = random_packed(len(queries.tokens), device), random_packed(9, device), random_packed(9, device)

    packed = attend_packed(
        q,
        k,
        v,
        queries=queries.to(device),
        keys=KEYS.to(device),
        is_causal=is_causal,
        dropout=Dropout(0.1).eval(),
    )
    gradients = torch.autograd.grad(packed.square().sum(), (q, k, v))

    padded = attend_to_rectangles(q.cpu(), k.cpu(), v.cpu(), queries, is_causal)
    torch.testing.assert_close(packed.cpu(), padded)
    expected = torch.autograd.grad(padded.square().sum(), (q, k, v))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_packed_tokens_attend_as_padded_ones_do() -> None:
    compare_with_rectangles("cpu", QUERIES, is_causal=False)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch has causal attention on nested tensors on GPUs only"
)
def test_packed_tokens_attend_to_earlier_ones_as_padded_ones_do() -> None:
    compare_with_rectangles("cuda", KEYS, is_causal=True)


def test_joining_undoes_splitting() -> None:
    x_BLD = torch.randn(3, 5, 8)

    q, k = split_heads(x_BLD, parts=2, heads=2)

    assert q.shape == (3, 2, 5, 2)
    assert torch.equal(torch.cat([join_heads(q), join_heads(k)], dim=2), x_BLD)
