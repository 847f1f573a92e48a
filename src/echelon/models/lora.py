"""LoRA (Hu et al., 2021): a layer's weight W is used as W + alpha / rank * up @ down, and only the two are trained.

O  rows of a weight    I  its columns, or all else of a convolution    R  rank

The sum is formed whenever a layer uses its weight, so whatever computes with the layer, kernels included, needs to know
nothing of it, and merging is the same sum once more, with the same bits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

_NAMES = ("down", "up", "scale")


class LoraAdapter(nn.Module):
    """What is added to a weight: nothing at first, as `up` begins with zeros."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = len(weight), math.prod(weight.shape[1:])
        down_RI = weight.new_empty(rank, columns, dtype=torch.float32)
        self.down = nn.Parameter(nn.init.kaiming_uniform_(down_RI, a=math.sqrt(5)))
        """A of the paper, [R, I], initialised as PEFT does it."""
        self.up = nn.Parameter(weight.new_zeros(rows, rank, dtype=torch.float32))
        """B of the paper, [O, R]."""
        self.scale: Tensor
        # A checkpoint has it, so that its weights can be merged without the recipe.
        self.register_buffer("scale", weight.new_full((1,), alpha / rank, dtype=torch.float32))


def add_product(weight: Tensor, down_RI: Tensor, up_OR: Tensor, scale_1: Tensor) -> Tensor:
    """The weight with its adapter merged into it; in float32 whatever autocast says."""
    with torch.autocast(weight.device.type, enabled=False):
        return weight + scale_1 * (up_OR @ down_RI).view(weight.shape)


class _Adapted(nn.Module):
    """Mixed into the class of a layer that has an adapter: the layer's own code then finds the sum as its weight."""

    @property
    def weight(self) -> Tensor:
        return _sum_of(self)


def _sum_of(layer: nn.Module) -> Tensor:
    own, adapter = layer._parameters["weight"], cast(LoraAdapter, layer._modules["lora"])
    assert own is not None
    return add_product(own, adapter.down, adapter.up, adapter.scale)


def _adapted_class(plain: type[nn.Module]) -> type[nn.Module]:
    return type(f"Adapted{plain.__name__}", (_Adapted, plain), {})


def add_adapters(model: nn.Module, layers: Iterable[str], rank: int, alpha: float) -> None:
    """Give the layers of these names adapters; ValueError if a weight has more than one layer."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name in layers:
        layer = model.get_submodule(name)
        own = layer.get_parameter("weight")
        if len(owners[id(own)]) > 1:
            raise ValueError(f"the weight of {name} is also {owners[id(own)][-1]}, which would stay as it is")
        layer.add_module("lora", LoraAdapter(own, rank, alpha))
        layer.__class__ = _adapted_class(type(layer))


@contextlib.contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """The model is a plain one meanwhile: without adapters, their products being part of the weights."""
    kept: list[tuple[nn.Module, type[nn.Module], nn.Parameter | None, nn.Module | None]] = []
    for layer in list(model.modules()):
        if isinstance(layer, _Adapted):
            with torch.no_grad():
                weight = nn.Parameter(_sum_of(layer), requires_grad=False)
            kept.append((layer, type(layer), layer._parameters["weight"], layer._modules.pop("lora")))
            layer.__class__ = type(layer).__bases__[1]
            layer._parameters["weight"] = weight
    try:
        yield
    finally:
        for layer, adapted, own, adapter in kept:
            layer._parameters["weight"], layer._modules["lora"] = own, adapter
            layer.__class__ = adapted


def merge_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors by name with all adapters merged; ValueError if an adapter does not fit its weight."""
    plain = dict(tensors)
    for layer in [name.removesuffix(".lora.scale") for name in tensors if name.endswith(".lora.scale")]:
        parts = [plain.pop(f"{layer}.lora.{name}", None) for name in _NAMES]
        weight, (down, up, scale) = plain.get(f"{layer}.weight"), parts
        if weight is None or down is None or up is None or scale is None:
            raise ValueError(f"the adapter of {layer} is not whole")
        if not _fits(weight, down, up, scale):
            raise ValueError(f"the adapter of {layer} does not fit its weight")
        plain[f"{layer}.weight"] = add_product(weight, down, up, scale)
    return plain


def _fits(weight: Tensor, down_RI: Tensor, up_OR: Tensor, scale_1: Tensor) -> bool:
    if weight.ndim < 2 or down_RI.ndim != 2 or up_OR.ndim != 2 or scale_1.numel() != 1:
        return False
    rows, columns = len(weight), math.prod(weight.shape[1:])
    return (len(up_OR), up_OR.shape[1], down_RI.shape[1]) == (rows, len(down_RI), columns)


def with_idle_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a plain model, for a model with adapters: these are its own, and add nothing."""
    result = dict(tensors)
    for name, tensor in model.state_dict().items():
        layer, is_of_adapter, kind = name.rpartition(".lora.")
        if is_of_adapter and f"{layer}.weight" in tensors and kind in _NAMES:
            result[name] = torch.zeros_like(tensor) if kind == "up" else tensor.clone()
    return result
