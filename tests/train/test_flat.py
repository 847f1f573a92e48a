from __future__ import annotations

import torch
from torch import nn

from echelon.train.flat import FlatParameters


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def test_the_models_tensors_become_views_and_keep_their_values() -> None:
    model, untouched = _model(), _model()
    flat = FlatParameters(model)
    for (name, now), (_, before) in zip(model.named_parameters(), untouched.named_parameters(), strict=True):
        assert torch.equal(now, before), name
        assert now.untyped_storage().data_ptr() == flat.weights.untyped_storage().data_ptr()
    flat.weights.zero_()
    assert all(not parameter.any() for parameter in model.parameters())


def test_backward_accumulates_into_the_flat_buffer() -> None:
    model, untouched = _model(), _model()
    flat = FlatParameters(model)
    x = torch.randn(3, 4)
    for _ in range(2):
        model(x).square().sum().backward()
        untouched(x).square().sum().backward()
    expected = {name: p.grad for name, p in untouched.named_parameters()}
    for name, gradient in flat.named(flat.gradients).items():
        assert torch.equal(gradient, expected[name]), name
    flat.zero()
    assert not flat.reduced.any()


def test_matrices_come_first_and_the_order_is_that_of_backward() -> None:
    flat = FlatParameters(_model())
    assert [s.name for s in flat.slices] == ["2.weight", "0.weight", "2.bias", "1.bias", "1.weight", "0.bias"]
    assert flat.num_decayed == 4 * 8 + 8 * 2
    assert [s.start for s in flat.slices[1:]] == [s.end for s in flat.slices[:-1]]
    assert flat.slices[-1].end == flat.size == sum(p.numel() for p in _model().parameters())
