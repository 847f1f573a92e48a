from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer
from echelon.shapes.transformer import (
    PRESETS,
    TokenCounts,
    TransformerShape,
    forward_flops,
    parameter_count,
    parameters,
    training_flops,
)

NORMS: list[Literal["pre", "post"]] = ["pre", "post"]
TIED: list[bool | Literal["target"]] = [True, False, "target"]


@pytest.mark.parametrize(
    ("preset", "norm", "tied", "biases"), list(product(PRESETS, NORMS, TIED, [True, False]))
)
def test_parameters_are_those_of_the_module(
    preset: str, norm: Literal["pre", "post"], tied: bool | Literal["target"], biases: bool
) -> None:
    shape = TransformerShape(1000, **PRESETS[preset], norm=norm, tied=tied, attention_biases=biases)
    with torch.device("meta"):
        model = Transformer(shape)

    expected = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]

    assert [(parameter.name, parameter.shape) for parameter in parameters(shape)] == expected
    assert parameter_count(shape) == sum(parameter.numel() for parameter in model.parameters())
    assert list(model.state_dict()) == [name for name, _ in expected]


def test_base_has_the_published_number_of_parameters() -> None:
    shape = TransformerShape(32_768, **PRESETS["base"])

    assert parameter_count(shape) == 60_880_896


def test_layers_and_kinds_of_parameters_are_named() -> None:
    listed = parameters(TransformerShape(100, **PRESETS["tiny"]))

    assert [p.layer for p in listed if p.kind == "embedding"] == ["embeddings"]
    assert {p.layer for p in listed} == {
        "embeddings", "encoder", "decoder",
        *(f"encoder.layers.{i}" for i in range(4)), *(f"decoder.layers.{i}" for i in range(4)),
    }  # fmt: skip
    assert all(len(p.shape) == (2 if p.kind in ("embedding", "matrix") else 1) for p in listed)


def test_flops_are_those_that_torch_counts() -> None:
    shape = TransformerShape(500, d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=3)
    sentences, s, t = 3, 7, 5
    source, target = Sequences.of([[4] * s] * sentences), Sequences.of([[4] * t] * sentences)
    model = Transformer(shape)

    with FlopCounterMode(display=False) as forward:
        logits = model.logits(model(source, target))
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()  # type: ignore[no-untyped-call]

    # torch counts the whole square of causal attention, we its half
    other_half = shape.decoder_layers * 2 * shape.d_model * sentences * t * t
    tokens = TokenCounts.of([(s, t)] * sentences)
    assert sum(forward_flops(shape, tokens).values()) + other_half == forward.get_total_flops()
    assert (
        training_flops(shape, tokens) + 3 * other_half
        == forward.get_total_flops() + backward.get_total_flops()
    )


def test_flops_of_a_ragged_batch_are_the_sum_of_its_sentences() -> None:
    shape = TransformerShape(500, **PRESETS["tiny"])
    pairs = [(3, 4), (10, 2), (1, 1)]

    alone = [training_flops(shape, TokenCounts.of([pair])) for pair in pairs]

    assert training_flops(shape, TokenCounts.of(pairs)) == sum(alone)


def test_flops_by_layer_use_the_words_of_the_parameters() -> None:
    shape = TransformerShape(500, **PRESETS["small"])
    flops = forward_flops(shape, TokenCounts.of([(9, 9)]))

    assert set(flops) - {"output"} <= {parameter.layer for parameter in parameters(shape)}
    assert flops["output"] == 2 * 9 * 256 * 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "does not divide into 3 heads"),
        ({"d_model": 9, "heads": 3}, "is odd"),
        ({"d_ff": 0}, "at least 1"),
        ({"decoder_layers": 0}, "at least 1"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    shape = TransformerShape(100, **PRESETS["tiny"])

    with pytest.raises(ValueError, match=message):
        replace(shape, **change)  # type: ignore[arg-type]


def test_shapes_do_not_need_torch() -> None:
    program = "import sys, echelon.shapes.transformer; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
