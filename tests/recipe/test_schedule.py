"""Learning rates against torch's schedulers, published values and formulas written independently."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    StepLR,
)

from echelon.recipe.schedule import formula, learning_rate, rate_by_step
from echelon.recipe.schema import Schedule
from tests.sample_recipe import sample_recipe

STEPS = 60


def schedule(kind: str, **values: Any) -> Schedule:
    result: Schedule = TypeAdapter(Schedule).validate_python({"kind": kind, **values})
    return result


def rates(chosen: Schedule, steps: int = STEPS, d_model: int = 512) -> list[float]:
    return [learning_rate(chosen, step, steps=steps, d_model=d_model) for step in range(1, steps + 1)]


def torch_rates(
    build: Callable[[torch.optim.Optimizer], LRScheduler], peak: float, steps: int = STEPS
) -> list[float]:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = build(optimiser)
    found = []
    for _ in range(steps):
        found.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        scheduler.step()
    return found


def test_cosine_equals_torch() -> None:
    ours = rates(schedule("cosine", learning_rate=0.3, final_learning_rate=0.01))
    theirs = torch_rates(lambda optimiser: CosineAnnealingLR(optimiser, STEPS - 1, eta_min=0.01), 0.3)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_polynomial_equals_torch() -> None:
    ours = rates(schedule("polynomial", learning_rate=0.3, power=2.0))
    theirs = torch_rates(lambda optimiser: PolynomialLR(optimiser, STEPS - 1, power=2.0), 0.3)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("rise", "steps"), [(0.3, 60), (0.25, 41), (0.9, 10), (0.95, 30)])
def test_one_cycle_equals_torch(rise: float, steps: int) -> None:
    ours = rates(
        schedule("one_cycle", learning_rate=0.3, rise=rise, start_divisor=20.0, final_divisor=50.0), steps
    )
    theirs = torch_rates(lambda optimiser: _one_cycle(optimiser, rise, steps), 0.3, steps - 1)
    assert ours[:-1] == pytest.approx(theirs, rel=1e-9)
    assert ours[-1] == pytest.approx(0.3 / 20 / 50, rel=1e-9)


def _one_cycle(optimiser: torch.optim.Optimizer, rise: float, steps: int) -> LRScheduler:
    return OneCycleLR(
        optimiser,
        0.3,
        total_steps=steps,
        pct_start=rise,
        div_factor=20.0,
        final_div_factor=50.0,
        cycle_momentum=False,
    )


def test_exponential_equals_torch() -> None:
    ours = rates(schedule("exponential", learning_rate=0.3, decay=0.9))
    assert ours == pytest.approx(torch_rates(lambda optimiser: ExponentialLR(optimiser, 0.9), 0.3), rel=1e-9)


def test_exponential_staircase_equals_torch() -> None:
    ours = rates(schedule("exponential", learning_rate=0.3, decay=0.5, decay_steps=7, staircase=True))
    assert ours == pytest.approx(torch_rates(lambda optimiser: StepLR(optimiser, 7, 0.5), 0.3), rel=1e-9)


def test_piecewise_equals_torch() -> None:
    ours = rates(schedule("piecewise", boundaries=[11, 31], learning_rates=[0.3, 0.03, 0.003]))
    theirs = torch_rates(lambda optimiser: MultiStepLR(optimiser, [10, 30], 0.1), 0.3)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_warm_up_equals_torch() -> None:
    ours = rates(schedule("fixed", learning_rate=0.3, warmup_steps=12))
    theirs = torch_rates(
        lambda optimiser: LinearLR(optimiser, start_factor=1 / 12, end_factor=1.0, total_iters=11), 0.3
    )
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 1.2353e-07), (4000, 4.9411e-04), (8000, 9.8821e-04), (100_000, 2.7951e-04)]
)
def test_transformer_schedule_has_the_published_values(step: int, rate: float) -> None:
    """2.0 x 512^-0.5 x min(s^-0.5, s x 8000^-1.5): OpenSeq2Seq's Transformer-base."""
    chosen = schedule("transformer", scale=2.0, warmup_steps=8000)
    assert learning_rate(chosen, step, steps=300_000, d_model=512) == pytest.approx(rate, rel=1e-4)


def test_inverse_sqrt_equals_the_formula() -> None:
    ours = rates(schedule("inverse_sqrt", learning_rate=2e-3, warmup_steps=20))
    theirs = [2e-3 * (step / 20 if step <= 20 else math.sqrt(20) / math.sqrt(step)) for step in range(1, 61)]
    assert ours == pytest.approx(theirs, rel=1e-12)


WITH_WARM_UP: dict[str, dict[str, Any]] = {
    "cosine": {"learning_rate": 0.1, "final_learning_rate": 0.02},
    "polynomial": {"learning_rate": 0.1, "final_learning_rate": 0.02, "power": 1.5},
    "exponential": {"learning_rate": 0.1, "decay": 0.95},
    "piecewise": {"boundaries": [30], "learning_rates": [0.1, 0.05]},
    "fixed": {"learning_rate": 0.1},
    "inverse_sqrt": {"learning_rate": 0.1},
}


@pytest.mark.parametrize("kind", WITH_WARM_UP)
def test_warm_up_is_a_straight_line_to_the_peak_and_never_rises_after(kind: str) -> None:
    found = rates(schedule(kind, warmup_steps=10, **WITH_WARM_UP[kind]))
    assert found[:10] == pytest.approx([0.1 * step / 10 for step in range(1, 11)], rel=1e-9)
    assert all(later <= earlier for earlier, later in itertools.pairwise(found[9:]))


@pytest.mark.parametrize("kind", ["cosine", "polynomial"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 10])
def test_last_step_has_the_final_rate(kind: str, warmup_steps: int) -> None:
    found = rates(schedule(kind, warmup_steps=warmup_steps, **WITH_WARM_UP[kind]))
    assert found[-1] == pytest.approx(0.02, rel=1e-9)
    assert max(found) == pytest.approx(0.1, rel=1e-9)


def test_first_exponential_rate_is_the_recipe_rate() -> None:
    assert rates(schedule("exponential", learning_rate=0.1, decay=0.5))[0] == 0.1


def test_piecewise_rate_changes_at_its_boundary() -> None:
    found = rates(schedule("piecewise", boundaries=[5], learning_rates=[0.1, 0.01]))
    assert (found[3], found[4]) == (0.1, 0.01)


@pytest.mark.parametrize("kind", [*WITH_WARM_UP, "one_cycle", "transformer"])
@given(steps=st.integers(1, 400))
def test_every_rate_of_every_length_is_finite_and_not_negative(kind: str, steps: int) -> None:
    values: dict[str, Any] = {
        "one_cycle": {"learning_rate": 0.1, "rise": 0.99},
        "transformer": {},
        **WITH_WARM_UP,
    }
    found = rates(schedule(kind, **values[kind]), steps)
    assert all(math.isfinite(rate) and 0 <= rate <= 1.0 for rate in found)


def test_rate_by_step_uses_the_width_of_the_recipe_model() -> None:
    recipe = sample_recipe(schedule={"kind": "transformer", "warmup_steps": 10}, model={"preset": "small"})
    assert rate_by_step(recipe, 100)(10) == pytest.approx(256**-0.5 * 10**-0.5)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (
            schedule("transformer", scale=2.0, warmup_steps=8000),
            "2 x 512^-0.5 x min(s^-0.5, s x 8000^-1.5)",
        ),
        (
            schedule("inverse_sqrt", learning_rate=0.002, warmup_steps=800),
            "0.002 x min(s / 800, (800 / s)^0.5)",
        ),
        (
            schedule("cosine", learning_rate=0.1, warmup_steps=5),
            "5 steps of linear warm-up, then half a cosine from 0.1 to 0",
        ),
        (schedule("polynomial", learning_rate=0.1, power=2.0), "from 0.1 to 0, (1 - progress)^2"),
        (
            schedule("one_cycle", learning_rate=0.1),
            "0.004 up to 0.1 over 30% of the steps, then down to 4e-07",
        ),
        (
            schedule("piecewise", boundaries=[10, 20], learning_rates=[0.1, 0.01, 0.001]),
            "0.1, 0.01 from step 10, 0.001 from step 20",
        ),
        (
            schedule("exponential", learning_rate=0.1, decay=0.5, decay_steps=7, warmup_steps=3),
            "3 steps of linear warm-up, then 0.1 x 0.5^((s - 3) / 7)",
        ),
        (
            schedule("exponential", learning_rate=0.1, decay=0.5, decay_steps=7, staircase=True),
            "0.1 x 0.5^floor((s - 1) / 7)",
        ),
        (schedule("fixed", learning_rate=0.1), "0.1"),
    ],
)
def test_formula_says_what_the_schedule_does(chosen: Schedule, text: str) -> None:
    assert formula(chosen, 512) == text


@pytest.mark.parametrize("warmup_steps", [0, 6])
@pytest.mark.parametrize("staircase", [False, True])
def test_exponential_formula_gives_the_exponential_rates(warmup_steps: int, staircase: bool) -> None:
    chosen = schedule(
        "exponential",
        learning_rate=0.1,
        decay=0.5,
        decay_steps=7,
        staircase=staircase,
        warmup_steps=warmup_steps,
    )
    text = formula(chosen, 512).split("then ")[-1].replace(" x ", "*").replace("^", "**")
    for step in (max(warmup_steps, 1), 20, 37):
        expected = eval(text, {"s": step, "floor": math.floor})
        assert learning_rate(chosen, step, steps=STEPS, d_model=512) == pytest.approx(expected)
