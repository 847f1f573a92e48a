"""Parts of a model that are frozen, or learn at rates of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from echelon.errors import UserError
from echelon.recipe.schema import AdamW, Sgd
from echelon.recipe.trained_parts import Lora, belongs_to
from echelon.train.flat import FlatParameters
from echelon.train.model_parts import adapt, freeze, rate_of, require_parts
from echelon.train.optimiser import FlatOptimiser


def make_model() -> nn.Module:
    torch.manual_seed(3)
    layers = {f"layer{number}": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for number in (1, 2, 10)}
    return nn.ModuleDict(layers)


def run_backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    x = torch.randn(5, 4)
    for part in model.children():
        x = part(x).relu()
    x.square().sum().backward()  # type: ignore[no-untyped-call]


def test_a_part_is_whole_names() -> None:
    assert belongs_to("layer1.0.weight", "layer1")
    assert belongs_to("layer1.0.weight", "layer1.0.weight")
    assert belongs_to("layer1.0.weight", "layer1.")
    assert not belongs_to("layer10.0.weight", "layer1")


def test_the_longest_part_that_fits_gives_the_rate() -> None:
    rates = {"layer1": 0.5, "layer1.1": 0.1}
    assert [rate_of(name, rates) for name in ("layer1.0.bias", "layer1.1.bias", "layer2.0.bias")] == [
        0.5,
        0.1,
        1.0,
    ]


def test_frozen_parts_are_not_among_what_is_trained() -> None:
    model = make_model()
    freeze(model, ["layer1", "layer10.1"])
    flat = FlatParameters(model)

    run_backward(model, 1)

    assert {s.name for s in flat.slices} == {
        f"{name}.{kind}" for name in ("layer2.0", "layer2.1", "layer10.0") for kind in ("weight", "bias")
    }
    assert model.get_parameter("layer1.0.weight").grad is None
    assert flat.gradients.abs().sum() > 0


def test_a_part_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(
        UserError, match=r"train\.freeze: the model has no 'encoder'; its parts are layer1, layer2"
    ):
        freeze(make_model(), ["layer1", "encoder"])
    with pytest.raises(UserError, match=r"train\.layer_rates: the model has no 'layer'"):
        require_parts(make_model(), "train.layer_rates", ["layer"])
    with pytest.raises(UserError, match="leaves nothing to train"):
        freeze(make_model(), ["layer1", "layer2", "layer10"])


def test_only_adapters_and_what_is_trained_in_full_get_gradients() -> None:
    model = make_model()
    adapt(model, Lora(rank=2, targets=["layer1.*", "*.0"], full=["layer2", "layer10"]))
    flat = FlatParameters(model)

    run_backward(model, 1)

    assert {s.name for s in flat.slices} == {
        "layer1.0.lora.down",
        "layer1.0.lora.up",
        *(
            f"{layer}.{number}.{kind}"
            for layer in ("layer2", "layer10")
            for number in (0, 1)
            for kind in ("weight", "bias")
        ),
    }
    assert flat.named(flat.gradients)["layer1.0.lora.up"].abs().sum() > 0


def test_adapters_for_layers_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"lora\.targets: 'encoder' fits no layer .*; there are layer1\.0, layer2\.0"
    ):
        adapt(make_model(), Lora(targets=["encoder"]))
    with pytest.raises(UserError, match=r"lora\.full: the model has no 'head'"):
        adapt(make_model(), Lora(targets=["layer1.*"], full=["head"]))
    with pytest.raises(
        UserError, match=r"lora\.targets: 'layer2\.\*' fits no layer"
    ):  # all of it is trained in full
        adapt(make_model(), Lora(targets=["layer2.*"], full=["layer2"]))


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_layers_learn_at_their_own_rates_and_resume_to_the_bit(kind: str) -> None:
    recipe = (
        AdamW(weight_decay=0.1)
        if kind == "adamw"
        else Sgd(kind="sgd", momentum=0.9, weight_decay=0.1, vector_rate=4.0)
    )
    rates = {"layer1": 0.1, "layer10": 3.0, "layer10.1": 0.5}
    ours, theirs = make_model(), make_model()
    groups = [
        {
            "params": [parameter],
            "weight_decay": 0.1 if parameter.ndim > 1 else 0.0,
            "factor": rate_of(name, rates) * (1.0 if parameter.ndim > 1 or kind == "adamw" else 4.0),
        }
        for name, parameter in theirs.named_parameters()
    ]
    reference: torch.optim.Optimizer = (
        torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)
        if kind == "adamw"
        else torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=False)
    )
    flat = FlatParameters(ours)
    optimiser = FlatOptimiser(recipe, flat, rates)
    for step in range(6):
        if step == 3:
            state = {name: tensor.clone() for name, tensor in optimiser.state().items()}
            optimiser = FlatOptimiser(recipe, flat, rates)
            optimiser.load_state(state)
        flat.zero()
        reference.zero_grad()
        run_backward(ours, step)
        run_backward(theirs, step)
        optimiser.step(0.01)
        for group in reference.param_groups:
            group["lr"] = 0.01 * group["factor"]
        reference.step()

    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, msg=name)
