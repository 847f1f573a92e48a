from __future__ import annotations

import torch

from echelon.models.alignment import align, alignment_layer
from echelon.models.sequences import Sequences
from tests.models.test_beam_search import BOS, make_model


def test_weights_are_those_of_the_textbook() -> None:
    model = make_model()
    source, target = [5, 6, 7, 1], [8, 9]
    seen: list[torch.Tensor] = []
    layer = model.decoder.layers[alignment_layer(2)]
    layer.cross_attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))  # type: ignore[union-attr]
    memory = model.encode(Sequences.of([source]))
    model.decode(Sequences.of([[BOS, *target]]), memory)
    attention = layer.cross_attention
    queries = attention.query(seen[0]).view(3, 2, 8).transpose(0, 1)  # type: ignore[operator, union-attr]
    keys = attention.kv(memory.hidden_ND)[:, :16].view(4, 2, 8).transpose(0, 1)  # type: ignore[operator, union-attr]
    expected = (queries @ keys.transpose(1, 2) / 8**0.5).softmax(2).mean(0)[:2]
    torch.testing.assert_close(align(model, source, target), expected)


def test_the_layer_before_the_last_aligns() -> None:
    assert [alignment_layer(layers) for layers in (1, 2, 6)] == [0, 0, 4]
