"""Sums that do not depend on the order of adding: the same bits from any number of workers."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

import pytest
import torch
from tests.pupils import SLOTS, Pupil, run_workers
from torch import Tensor, nn

from echelon.comm.group import Group
from echelon.models.kernels.fixed_point import FixedPoint, PlainFixedPoint, choose_fixed_point
from echelon.train.exchange import build_exact
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.whole_numbers import (
    UNKNOWN,
    Sum,
    WholeNumbers,
    choose_scale,
    limit_bits,
)
from echelon.train.flat import FlatParameters

STEPS = range(1, 21)


def learn(way: str, group: Group) -> dict[str, Tensor]:
    if way == "memory":
        os.environ["LOCAL_WORLD_SIZE"] = str(group.size)
    os.environ["LOCAL_RANK"] = str(group.rank % 2)
    exchange = build_exact(group, bucket_bytes=8192, hierarchical=way == "host by host")
    pupil = Pupil(group, exchange)
    pupil.train(STEPS)
    assert exchange.traits.name == {"memory": "host_sum", "host by host": "hierarchical"}.get(
        way, "all_reduce"
    )
    return pupil.result()


@pytest.mark.parametrize(
    ("way", "size"),
    [
        ("memory", 2),
        ("memory", 3),
        ("all-reduce", 2),
        ("all-reduce", 3),
        ("all-reduce", 7),
        ("host by host", 4),
    ],
)
def test_any_number_of_workers_in_any_arrangement_gives_the_same_bits(
    way: str, size: int, tmp_path: Path
) -> None:
    alone = learn("alone", Group(0, 1))
    assert alone["losses"][-1] < 0.8 * alone["losses"][0], "weights that never moved would prove nothing"
    for result in run_workers(functools.partial(learn, way), size, tmp_path):
        for name in ("weights", "losses", "shared/largest_gradients"):
            assert torch.equal(result[name], alone[name]), name


def test_a_resumed_run_has_the_scales_of_the_one_that_was_saved(tmp_path: Path) -> None:
    whole = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    whole.train(range(1, 11))
    half, resumed = (Pupil(Group(0, 1), AllReduce(Group(0, 1))) for _ in range(2))
    half.train(range(1, 6))
    torch.save(half.result(), tmp_path / "0.pt")
    resumed.go_on_from(tmp_path)
    resumed.train(range(6, 7))
    assert "repeats" not in resumed.exchange.facts(), "nothing is computed twice"
    resumed.train(range(7, 11))
    assert torch.equal(resumed.flat.weights, whole.flat.weights)


def test_a_step_that_was_broken_off_is_done_again_to_the_bit() -> None:
    """Another exchange takes over the weights, as when a worker is lost after the step's sum and before its update."""
    whole, broken = (Pupil(Group(0, 1), AllReduce(Group(0, 1))) for _ in range(2))
    whole.train(range(1, 9))
    broken.train(range(1, 6))
    (update,) = broken.exchange.updates(6, SLOTS)
    broken._backward(6, update)
    broken.exchange.reduce()
    shared = broken.exchange.state().shared
    broken.flat.release()
    broken.exchange = AllReduce(Group(0, 1))
    broken.exchange.attach(broken.flat, broken.optimiser, lambda: None)
    broken.exchange.load_state(shared)
    broken.train(range(6, 9))
    assert len(broken.flat.reduced) == len(whole.flat.reduced)
    for name in ("weights", "losses", "shared/largest_gradients"):
        assert torch.equal(broken.result()[name], whole.result()[name]), name


def test_a_checkpoint_without_scales_costs_one_repeated_step() -> None:
    pupil = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    pupil.train(range(1, 3))
    pupil.exchange.load_state({})
    pupil.train(range(3, 4))
    assert pupil.exchange.facts()["repeats"] == 1


def both() -> tuple[FixedPoint, FixedPoint]:
    compiled = choose_fixed_point(torch.device("cpu"))
    if isinstance(compiled, PlainFixedPoint):
        pytest.skip("no kernels on this machine")
    return compiled, PlainFixedPoint()


@pytest.mark.parametrize("count", [1, 17, 100_003])
def test_the_kernel_and_plain_pytorch_agree_to_the_bit(count: int) -> None:
    dice = torch.Generator().manual_seed(count)
    numbers = torch.randn(count, generator=dice) * torch.exp(8 * torch.randn(count, generator=dice))
    numbers[0] = 2.5  # a tie
    results = []
    for fixed_point in both():
        buffer = torch.ones(count)
        sums, largest = buffer.view(torch.int32), torch.zeros((), dtype=torch.int32)
        sums.fill_(3)
        for scale in (1.0, 2.0**20):  # the second time many are beyond the limit
            fixed_point.add(numbers, sums, largest, scale, 2.0**27)
        added = sums.clone()
        fixed_point.read(buffer, 2.0**-20)
        results.append((added, largest, buffer))
    for ours, plain in zip(*results, strict=True):
        assert torch.equal(ours, plain)
    assert results[0][1].view(torch.float32) == numbers.abs().max()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_the_largest_in_both(bad: float) -> None:
    for fixed_point in both():
        largest = torch.zeros((), dtype=torch.int32)
        numbers = torch.tensor([1.0, bad, 3e38])
        fixed_point.add(numbers, torch.zeros(3, dtype=torch.int32), largest, 1.0, 2.0**20)
        assert not largest.view(torch.float32).isfinite()


@pytest.mark.parametrize("num_slots", [1, 2, 3, 8, 100])
def test_as_many_slots_as_there_are_fit_into_the_sum(num_slots: int) -> None:
    assert num_slots * 2 ** limit_bits(num_slots) <= 2**30
    for largest in (1e-30, 3e-5, 1.0, 7e8):
        scale = choose_scale(largest, num_slots)
        assert scale.capacity * scale.factor == 2.0 ** limit_bits(num_slots)
        assert 32 * largest <= scale.capacity <= 64 * largest
    assert choose_scale(0.0, num_slots) == UNKNOWN


def test_the_smallest_and_the_largest_floats_have_scales() -> None:
    for largest in (1e-45, 3.4e38):
        scale = choose_scale(largest, 4)
        assert largest <= scale.capacity
        assert 0 < scale.factor < math.inf


def numbers_of(flat: FlatParameters) -> WholeNumbers:
    numbers = WholeNumbers(flat, PlainFixedPoint())
    width = len(flat.slices)
    flat.hold_whole_numbers(torch.zeros(len(flat.reduced) + width))
    numbers.attach(0, flat.reduced[-width:].view(1, width))
    return numbers


def add_up(flat: FlatParameters, numbers: WholeNumbers, model: nn.Module, factors: list[float]) -> Sum:
    """A step whose slots have gradients that are multiples of each other."""
    numbers.choose_scales()
    flat.zero()
    for factor in factors:
        (model(torch.linspace(-1, 1, 8)).sum() * factor).backward()
    return numbers.read()


def test_a_gradient_beyond_its_scale_repeats_the_step_once_and_then_fits() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    flat = FlatParameters(model, num_slots=2)
    numbers = numbers_of(flat)
    assert add_up(flat, numbers, model, [1.0, 2.0]) is Sum.TOO_LARGE, "no scale is known at first"
    assert add_up(flat, numbers, model, [1.0, 2.0]) is Sum.WHOLE
    expected = 3 * torch.linspace(-1, 1, 8).repeat(3)
    torch.testing.assert_close(flat.gradients[:24], expected, rtol=1e-6, atol=1e-6)
    assert add_up(flat, numbers, model, [20.0, 20.0]) is Sum.WHOLE, "there is room for some growth"
    assert add_up(flat, numbers, model, [1.0, 5000.0]) is Sum.TOO_LARGE
    assert add_up(flat, numbers, model, [1.0, 5000.0]) is Sum.WHOLE
    torch.testing.assert_close(flat.gradients[:24], 5001 / 3 * expected, rtol=1e-6, atol=1e-3)


def test_a_gradient_that_is_not_finite_leaves_the_scales_alone() -> None:
    model = nn.Linear(8, 3)
    flat = FlatParameters(model, num_slots=2)
    numbers = numbers_of(flat)
    add_up(flat, numbers, model, [1.0])
    before = numbers.largest.clone()
    assert add_up(flat, numbers, model, [1.0, math.nan]) is Sum.NOT_FINITE
    assert not flat.gradients.isfinite().any()
    assert torch.equal(numbers.largest, before)
    assert add_up(flat, numbers, model, [1.0, 1.0]) is Sum.WHOLE


def test_the_sum_is_as_close_to_the_true_one_as_a_float_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    flat = FlatParameters(model, num_slots=SLOTS)
    numbers, slots = numbers_of(flat), torch.randn(SLOTS, 16, 8)
    for _ in range(2):
        numbers.choose_scales()
        flat.zero()
        for slot in slots:
            model(slot).square().sum().backward()
        result = numbers.read()
    assert result is Sum.WHOLE
    double = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).double()
    double.load_state_dict(model.state_dict())
    for slot in slots.double():
        double(slot).square().sum().backward()
    for s in flat.slices:
        exact = dict(double.named_parameters())[s.name].grad
        assert exact is not None
        error = (s.view(flat.gradients) - exact).abs().max() / exact.abs().max()
        assert error < 2**-20, s.name
