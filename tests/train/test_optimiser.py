from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from echelon.recipe.schema import Adam, AdamW, Sgd
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser

Build = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

CASES: dict[str, tuple[Any, Build]] = {
    "adam": (
        Adam(beta2=0.997, weight_decay=0.1),
        lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.997), eps=1e-9),
    ),
    "adamw": (
        AdamW(weight_decay=0.1),
        lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9),
    ),
    "sgd": (
        Sgd(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "plain sgd": (Sgd(kind="sgd", momentum=0.0), lambda groups: torch.optim.SGD(groups, lr=0.1)),
}


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def _backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randn(5, 4)).square().sum().backward()


def _reference(build: Build, weight_decay: float, steps: int) -> nn.Module:
    model = _model()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimiser = build(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    )
    for step in range(steps):
        optimiser.zero_grad()
        _backward(model, step)
        for group in optimiser.param_groups:
            group["lr"] = 0.01 * (step + 1)
        optimiser.step()
    return model


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_torchs_and_biases_and_norms_are_not_decayed(case: str) -> None:
    recipe, build = CASES[case]
    model = _model()
    flat = FlatParameters(model)
    optimiser = FlatOptimiser(recipe, flat)
    for step in range(6):
        flat.zero()
        _backward(model, step)
        optimiser.step(0.01 * (step + 1))
    expected = _reference(build, recipe.weight_decay, 6)
    for (name, ours), (_, theirs) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_saved_state_goes_on_to_the_bit(case: str) -> None:
    recipe, _ = CASES[case]
    model, resumed = _model(), _model()
    flat, resumed_flat = FlatParameters(model), FlatParameters(resumed)
    optimiser, resumed_optimiser = FlatOptimiser(recipe, flat), FlatOptimiser(recipe, resumed_flat)
    for step in range(6):
        if step == 3:
            resumed_flat.weights.copy_(flat.weights)
            resumed_optimiser.load_state({name: t.clone() for name, t in optimiser.state().items()})
        flat.zero()
        _backward(model, step)
        optimiser.step(0.01)
        if step >= 3:
            resumed_flat.zero()
            _backward(resumed, step)
            resumed_optimiser.step(0.01)
    assert torch.equal(flat.weights, resumed_flat.weights)


def test_state_is_named_after_the_models_tensors() -> None:
    model = _model()
    flat = FlatParameters(model)
    optimiser = FlatOptimiser(Adam(), flat)
    _backward(model, 0)
    optimiser.step(0.1)
    state = optimiser.state()
    assert state.keys() == {"step"} | {
        f"{kind}/{name}" for kind in ("exp_avg", "exp_avg_sq") for name, _ in model.named_parameters()
    }
    assert all(state[f"exp_avg/{name}"].shape == p.shape for name, p in model.named_parameters())


def test_biases_and_norms_may_have_a_rate_of_their_own() -> None:
    ends = []
    for vector_rate in (1.0, 4.0):
        model = _model()
        flat = FlatParameters(model)
        optimiser = FlatOptimiser(Sgd(kind="sgd", momentum=0.0, vector_rate=vector_rate), flat)
        before = flat.weights.clone()
        _backward(model, 0)
        optimiser.step(0.01)
        ends.append(flat.weights.detach() - before)
    matrices, vectors = slice(0, flat.num_decayed), slice(flat.num_decayed, flat.size)
    torch.testing.assert_close(ends[1][matrices], ends[0][matrices])
    torch.testing.assert_close(ends[1][vectors], 4 * ends[0][vectors], rtol=1e-4, atol=1e-6)


def test_no_optimiser_imports_torchs_compiler() -> None:
    """Importing it takes a worker longer than importing the rest of torch."""
    program = (
        "import sys; from tests.train.test_optimiser import CASES, FlatOptimiser, FlatParameters, _backward, _model\n"
        "for recipe, _ in CASES.values():\n"
        "    flat = FlatParameters(model := _model())\n"
        "    optimiser = FlatOptimiser(recipe, flat)\n"
        "    _backward(model, 0)\n"
        "    optimiser.step(0.1)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True)
