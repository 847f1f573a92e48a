"""Low-rank adapters: the formula of the paper, merged with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from echelon.models.lora import LoraAdapter, add_adapters, merge_tensors, merged, with_idle_adapters

RANK, ALPHA = 3, 12.0


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.convolution = nn.Conv2d(1, 4, 3, padding=1, stride=2)
        self.linear = nn.Linear(16, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, x_BL: Tensor) -> Tensor:
        hidden = self.convolution(self.table(x_BL)[:, None]).flatten(2).mean(1)
        out: Tensor = self.norm(self.linear(hidden))
        return out


def make(*, seed: int = 1) -> Layers:
    torch.manual_seed(seed)
    return Layers()


def make_adapted() -> Layers:
    """With adapters that add something."""
    model = make()
    add_adapters(model, ["table", "convolution", "linear"], RANK, ALPHA)
    for module in model.modules():
        if isinstance(module, LoraAdapter):
            nn.init.normal_(module.up)
    return model


X = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [6, 5, 4, 3, 2, 1, 0, 6]])


def test_new_adapters_add_nothing() -> None:
    plain, adapted = make(), make()
    add_adapters(adapted, ["table", "convolution", "linear"], RANK, ALPHA)
    assert torch.equal(adapted(X), plain(X))


def test_a_linear_layer_follows_the_paper_in_output_and_gradients() -> None:
    torch.manual_seed(2)
    layer, x = nn.Linear(6, 4), torch.randn(5, 6)
    holder = nn.ModuleDict({"layer": layer})
    layer.requires_grad_(False)
    add_adapters(holder, ["layer"], RANK, ALPHA)
    adapter = layer.get_submodule("lora")
    assert isinstance(adapter, LoraAdapter)
    nn.init.normal_(adapter.up)
    down, up = (part.detach().clone().requires_grad_() for part in (adapter.down, adapter.up))
    own, bias = (layer._parameters[name] for name in ("weight", "bias"))
    assert own is not None

    found = layer(x)
    expected = F.linear(x, own, bias) + ALPHA / RANK * (x @ down.T @ up.T)
    found.square().sum().backward()
    expected.square().sum().backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(adapter.down.grad, down.grad)
    torch.testing.assert_close(adapter.up.grad, up.grad)
    assert own.grad is None


def test_a_convolution_follows_two_convolutions_in_a_row() -> None:
    torch.manual_seed(3)
    layer, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 5, 5)
    holder = nn.ModuleDict({"layer": layer})
    add_adapters(holder, ["layer"], RANK, ALPHA)
    adapter = layer.get_submodule("lora")
    assert isinstance(adapter, LoraAdapter)
    nn.init.normal_(adapter.up)
    own = layer._parameters["weight"]
    assert own is not None

    narrow = F.conv2d(x, adapter.down.view(RANK, 3, 3, 3), padding=1)
    added = F.conv2d(narrow, adapter.up.view(4, RANK, 1, 1))

    torch.testing.assert_close(layer(x), F.conv2d(x, own, layer.bias, padding=1) + ALPHA / RANK * added)


def test_merging_changes_no_bit_of_the_output() -> None:
    model = make_adapted()
    names, expected = list(model.state_dict()), model(X)
    plain = make(seed=9)

    plain.load_state_dict(merge_tensors(model.state_dict()))
    with merged(model):
        inside, plain_names = model(X), list(model.state_dict())
        assert all(
            type(ours) is type(theirs) for ours, theirs in zip(model.modules(), plain.modules(), strict=True)
        )

    assert torch.equal(plain(X), expected)
    assert torch.equal(inside, expected)
    assert plain_names == list(plain.state_dict())
    assert torch.equal(model(X), expected)
    assert list(model.state_dict()) == names


def test_a_plain_models_tensors_load_into_one_with_adapters() -> None:
    plain, model = make(seed=5), make_adapted()
    downs = {name: tensor.clone() for name, tensor in model.state_dict().items() if name.endswith(".down")}

    model.load_state_dict(with_idle_adapters(model, plain.state_dict()))

    assert torch.equal(model(X), plain(X))
    assert len(downs) == 3
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in downs.items())


def test_autocast_rounds_the_sum_and_not_its_parts() -> None:
    model = make_adapted()
    plain = make()
    plain.load_state_dict(merge_tensors(model.state_dict()))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(X), plain(X))


def test_a_weight_of_two_layers_is_refused() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["table"].weight
    with pytest.raises(ValueError, match=r"weight of table is also head\.weight"):
        add_adapters(model, ["table"], RANK, ALPHA)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop("linear.lora.up"), "of linear is not whole"),
        (lambda tensors: tensors.pop("linear.weight"), "of linear is not whole"),
        (lambda tensors: tensors.update({"linear.lora.up": torch.zeros(6, RANK)}), "does not fit its weight"),
        (lambda tensors: tensors.update({"linear.lora.down": torch.zeros(RANK)}), "does not fit its weight"),
        (lambda tensors: tensors.update({"linear.lora.scale": torch.zeros(5)}), "does not fit its weight"),
        (lambda tensors: tensors.update({"linear.weight": torch.zeros(5)}), "does not fit its weight"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(change: Callable[[dict[str, Any]], Any], says: str) -> None:
    tensors = dict(make_adapted().state_dict())
    change(tensors)
    with pytest.raises(ValueError, match=says):
        merge_tensors(tensors)
