"""BatchNorm's running statistics: those of all slots, in slot order, whoever computed them."""

from __future__ import annotations

import torch
from torch import nn

from echelon.models.batch_norm import BatchNorm
from echelon.train.flat import FlatParameters
from echelon.train.statistics import SlotStatistics


def model_with(slots: int) -> tuple[nn.Module, FlatParameters, SlotStatistics]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNorm(4), nn.ReLU(), nn.Conv2d(4, 2, 3), BatchNorm(2))
    statistics = SlotStatistics(model, slots)
    flat = FlatParameters(model, slots, statistics.size)
    statistics.attach(flat)
    return model, flat, statistics


def test_statistics_of_workers_add_up_to_those_of_one() -> None:
    batches = [torch.randn(5, 3, 8, 8) for _ in range(3)]
    ends = []
    for shares in ([[0, 1, 2]], [[0], [1, 2]]):
        workers = [model_with(3) for _ in shares]
        for (model, flat, statistics), share in zip(workers, shares, strict=True):
            flat.zero()
            for slot in share:
                model(batches[slot])
                statistics.note(slot)
        total = torch.stack([flat.statistics for _, flat, _ in workers]).sum(0)
        for _, flat, statistics in workers:
            flat.statistics.copy_(total)
            statistics.apply(1, range(3))
        ends.append([dict(model.named_buffers()) for model, _, _ in workers])
    for worker in ends[1]:
        for name, buffer in ends[0][0].items():
            if "running" in name:
                assert torch.equal(buffer, worker[name]), name


def test_running_statistics_follow_the_mean_of_the_slots() -> None:
    model, flat, statistics = model_with(2)
    flat.zero()
    seen = []
    for slot in (0, 1):
        batch = torch.randn(4, 3, 8, 8)
        model(batch)
        statistics.note(slot)
        hidden = model[0](batch)  # type: ignore[index]
        seen.append((hidden.mean((0, 2, 3)), hidden.var((0, 2, 3))))
    statistics.apply(50, range(2))
    buffers = dict(model.named_buffers())
    torch.testing.assert_close(buffers["1.running_mean"], 0.1 * (seen[0][0] + seen[1][0]) / 2)
    torch.testing.assert_close(buffers["1.running_var"], 0.9 + 0.1 * (seen[0][1] + seen[1][1]) / 2)


def test_what_memory_held_before_is_not_in_the_statistics() -> None:
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has initialised with NaN
    try:
        model, flat, statistics = model_with(1)
    finally:
        torch.use_deterministic_algorithms(False)
    flat.zero()
    model(torch.randn(4, 3, 8, 8))
    statistics.note(0)
    assert flat.statistics.isfinite().all()


def test_the_first_steps_are_plain_means() -> None:
    model, flat, statistics = model_with(1)
    means = []
    for step in (1, 2, 3):
        flat.zero()
        model(torch.randn(4, 3, 8, 8))
        statistics.note(0)
        means.append(flat.statistics.clone())
        statistics.apply(step, range(1))
    running = torch.cat([dict(model.named_buffers())[f"1.running_{kind}"] for kind in ("mean", "var")])
    torch.testing.assert_close(running, torch.stack(means).mean(0)[:8])


def test_a_model_without_norms_has_no_statistics() -> None:
    model = nn.Linear(3, 3)
    statistics = SlotStatistics(model, 4)
    assert statistics.size == 0
    statistics.attach(FlatParameters(model))
    statistics.note(1)
    statistics.apply(1, range(4))
