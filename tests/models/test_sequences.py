from __future__ import annotations

import math

import pytest
import torch

from echelon.models.sequences import ROWS, Sequences, round_up, shift_right

RAGGED = [[5, 6, 1], [1], [7, 8, 9, 10, 1]]


def test_sequences_lie_one_after_the_other() -> None:
    sequences = Sequences.of(RAGGED)

    assert sequences.tokens.tolist() == [5, 6, 1, 1, 7, 8, 9, 10, 1]
    assert sequences.offsets.tolist() == [0, 3, 4, 9]
    assert sequences.lengths == (3, 1, 5)
    assert (len(sequences), sequences.longest, sequences.is_uniform) == (3, 5, False)


def test_twice_is_all_and_then_all_again() -> None:
    twice, expected = Sequences.of(RAGGED).twice(), Sequences.of(RAGGED + RAGGED)

    assert twice.tokens.tolist() == expected.tokens.tolist()
    assert twice.offsets.tolist() == expected.offsets.tolist()
    assert twice.lengths == expected.lengths


def test_lengths_are_read_from_the_offsets() -> None:
    assert Sequences(torch.arange(9), torch.tensor([0, 3, 4, 9])).lengths == (3, 1, 5)


def test_positions_start_again_with_each_sequence() -> None:
    assert Sequences.of(RAGGED).positions_N.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4]


def test_padding_puts_zeros_after_each_sequence() -> None:
    sequences = Sequences.of(RAGGED)

    padded = sequences.pad(sequences.tokens)

    assert padded.tolist() == [[5, 6, 1, 0, 0], [1, 0, 0, 0, 0], [7, 8, 9, 10, 1]]
    assert sequences.padding_bias_B11L is not None
    assert torch.equal(sequences.padding_bias_B11L[:, 0, 0] == 0, padded != 0)
    assert torch.equal(sequences.padding_bias_B11L[:, 0, 0] == -math.inf, padded == 0)


@pytest.mark.parametrize("lengths", [[3, 1, 5], [4, 4], [1]])
def test_unpadding_undoes_padding(lengths: list[int]) -> None:
    sequences = Sequences.of([[4] * length for length in lengths])
    x = torch.randn(sum(lengths), 2, 3)

    assert torch.equal(sequences.unpad(sequences.pad(x)), x)
    assert sequences.pad(x).shape == (len(lengths), max(lengths), 2, 3)


def test_gradients_of_padding_and_unpadding_are_right() -> None:
    sequences = Sequences.of(RAGGED)
    packed = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    padded = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(sequences.pad, packed)
    assert torch.autograd.gradcheck(sequences.unpad, padded)
    assert torch.autograd.gradgradcheck(sequences.pad, packed)


def test_uniform_sequences_need_neither_mask_nor_copy() -> None:
    sequences = Sequences.of([[4, 5], [6, 7]])
    x = torch.randn(4, 3)

    assert sequences.padding_bias_B11L is None
    assert sequences.pad(x).data_ptr() == x.data_ptr()


def test_decoder_input_begins_with_bos_and_lacks_the_end() -> None:
    target = Sequences.of(RAGGED)

    shifted = shift_right(target, bos=2)

    assert shifted.tokens.tolist() == [2, 5, 6, 2, 2, 7, 8, 9, 10]
    assert shifted.lengths == target.lengths
    assert target.tokens.tolist() == [5, 6, 1, 1, 7, 8, 9, 10, 1]


def test_a_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="has no token"):
        Sequences.of([[4, 1], []])


@pytest.mark.parametrize("shape", [(1,), (ROWS,), (ROWS + 1, 3)])
def test_rows_are_rounded_up_with_zeros(shape: tuple[int, ...]) -> None:
    rounded = round_up(torch.ones(shape))
    assert len(rounded) == math.ceil(shape[0] / ROWS) * ROWS
    assert bool((rounded[: shape[0]] == 1).all())
    assert bool((rounded[shape[0] :] == 0).all())
