"""Which parts of a model are trained: what is not frozen, or adapters (LoRA). From sizes alone, without torch."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from echelon.recipe.section import Section

ParameterSizes = Mapping[str, tuple[int, ...]]
"""The sizes of a model's parameters by their names."""

WEIGHT, DOWN, UP = ".weight", ".lora.down", ".lora.up"
"""How the names of a layer's weight and of its adapter's two matrices end."""


class Lora(Section):
    """Low-rank adapters (LoRA), for fine-tuning with little memory and traffic: the model's own weights stay as they
    are, and each chosen matrix W is used as W + alpha / rank * B A, of which only A and B are trained."""

    rank: PositiveInt = 8
    """Rows of A and columns of B."""
    alpha: PositiveFloat = 16.0
    """The adapters' products are multiplied by alpha / rank."""
    targets: Annotated[list[str], Field(min_length=1)]
    """The layers that get an adapter, as patterns of their names in which * stands for anything, e.g.
    ["*.attention.qkv", "*.cross_attention.*"] or ["layer4.*"]. Each has to fit a layer with a matrix or a
    convolution."""
    full: list[str] = Field(default=[])
    """Parts that are trained in full beside the adapters, by the beginning of their parameters' names, e.g. ["fc"]: a
    last layer for other classes begins anew, and has nothing to adapt."""


def belongs_to(name: str, part: str) -> bool:
    """Whether a parameter is of a part: `layer1` has `layer1.0.conv1.weight`, and not `layer10.weight`."""
    return name == part or name.startswith(f"{part.removesuffix('.')}.")


def belongs_to_any(name: str, parts: Iterable[str]) -> bool:
    return any(belongs_to(name, part) for part in parts)


def adapted_layers(sizes: ParameterSizes, lora: Lora) -> list[str]:
    """The names of the layers that get an adapter, in the model's order."""
    return [
        layer
        for layer in _layers(sizes)
        if any(fnmatchcase(layer, target) for target in lora.targets)
        and not belongs_to_any(layer + WEIGHT, lora.full)
    ]


def find_idle_targets(sizes: ParameterSizes, lora: Lora) -> Iterator[str]:
    """What is wrong with targets that fit no layer."""
    layers = [layer for layer in _layers(sizes) if not belongs_to_any(layer + WEIGHT, lora.full)]
    kinds = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", layer) for layer in layers))
    for target in lora.targets:
        if any(fnmatchcase(layer, target) for layer in layers):
            continue
        if any(kind.endswith(f".{target}") for kind in kinds):
            near = [f"*.{target}"]
        else:
            near = difflib.get_close_matches(target, [*kinds, *layers], n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(kinds[:12])}"
        yield f"{target!r} fits no layer with a matrix or a convolution; {hint}"


def _layers(sizes: ParameterSizes) -> Iterator[str]:
    """The layers whose weight is a matrix, or becomes one if all but its rows are taken as columns."""
    for name, size in sizes.items():
        if name.endswith(WEIGHT) and len(size) >= 2 and math.prod(size[1:]) > 1:
            yield name.removesuffix(WEIGHT)


def trained_sizes(
    sizes: ParameterSizes, lora: Lora | None, frozen: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """The sizes of all that the optimiser updates: parameters of the model's own, and of adapters."""
    if lora is None:
        return {name: size for name, size in sizes.items() if not belongs_to_any(name, frozen)}
    trained = {name: size for name, size in sizes.items() if belongs_to_any(name, lora.full)}
    for layer in adapted_layers(sizes, lora):
        rows, *columns = sizes[layer + WEIGHT]
        trained[layer + DOWN] = (lora.rank, math.prod(columns))
        trained[layer + UP] = (rows, lora.rank)
    return trained


def owner_of(name: str) -> str:
    """The model's own parameter that something trained changes: itself, or what an adapter is for."""
    for ending in (DOWN, UP):
        if name.endswith(ending):
            return name.removesuffix(ending) + WEIGHT
    return name
