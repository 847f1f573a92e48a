"""The running average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from echelon.errors import LostGroupError
from echelon.models.batch_norm import BatchNorm
from echelon.train.flat import FlatParameters
from echelon.train.statistics import SlotStatistics
from echelon.train.weight_average import WeightAverage


def model_with_average(decay: float | None) -> tuple[nn.Module, FlatParameters, WeightAverage]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), BatchNorm(4))
    model.register_buffer("fixed", torch.ones(2))
    statistics = SlotStatistics(model, 1)
    flat = FlatParameters(model, 1, statistics.size)
    statistics.attach(flat)
    return model, flat, WeightAverage(model, flat, decay)


def test_the_average_follows_the_weights_at_its_decay() -> None:
    _, flat, average = model_with_average(0.9)
    start = flat.weights.clone()
    flat.weights += 1
    flat.running += 2
    average.update(1000)
    torch.testing.assert_close(average.averages[0], start + 0.1)
    torch.testing.assert_close(average.averages[1], flat.running - 2 * 0.9)


def test_the_first_steps_count_for_more() -> None:
    _, flat, average = model_with_average(0.999)
    start = flat.weights.clone()
    flat.weights += 1
    average.update(1)
    torch.testing.assert_close(average.averages[0], start + 9 / 11)


def test_the_model_holds_the_average_only_meanwhile() -> None:
    model, flat, average = model_with_average(0.5)
    flat.weights += 1
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.in_place():
        torch.testing.assert_close(model.get_parameter("0.weight"), trained["0.weight"] - 1)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_the_trained_weights_of_a_checkpoint_are_no_state_of_the_optimiser() -> None:
    _, _, average = model_with_average(0.5)
    beside = {"exp_avg/0.weight": torch.zeros(4, 3), "step": torch.tensor(1.0)}
    assert average.leave_out(average.saved_state() | beside) == beside


def test_the_trained_weights_are_back_if_a_scoring_fails() -> None:
    _, flat, average = model_with_average(0.5)
    flat.weights += 1
    trained = flat.weights.clone()
    with pytest.raises(LostGroupError), average.in_place():
        raise LostGroupError("a worker is lost")
    assert torch.equal(flat.weights, trained)


def test_a_checkpoint_holds_the_average_as_the_model_and_the_weights_beside_it() -> None:
    model, flat, average = model_with_average(0.5)
    flat.weights += 1
    flat.running += 1
    saved, state = average.saved_model(), average.saved_state()
    assert saved.keys() == model.state_dict().keys()
    assert {name.removeprefix("trained/") for name in state} == saved.keys() - {"fixed"}
    torch.testing.assert_close(saved["1.running_mean"], model.state_dict()["1.running_mean"] - 1)

    again, other, resumed = model_with_average(0.5)
    again.load_state_dict(saved)
    resumed.load_state(state)
    assert torch.equal(other.weights, flat.weights)
    assert torch.equal(other.running, flat.running)
    for mine, theirs in zip(resumed.averages, average.averages, strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_without_an_average_is_refused() -> None:
    with pytest.raises(KeyError):
        model_with_average(0.5)[2].load_state({})


def test_without_a_decay_there_is_no_average() -> None:
    model, flat, average = model_with_average(None)
    average.update(1)
    average.load_state({})
    assert average.saved_state() == {}
    for name, tensor in average.saved_model().items():
        assert tensor.data_ptr() == model.state_dict()[name].data_ptr(), name
    before = flat.weights.clone()
    with average.in_place():
        assert torch.equal(flat.weights, before)
