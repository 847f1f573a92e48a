"""Experiments: which trainings they need, and what they conclude from made-up runs."""

from __future__ import annotations

from echelon.explain.experiments import plan_stages


def test_checkpoints_are_compared_with_hardly_any() -> None:
    stages = plan_stages("checkpoints", 2000)
    assert [stage.run for stage in stages] == ["never", "every-100", "every-500", "every-1000"]
    assert stages[1].overrides() == ["train.epochs=", "train.steps=2000", "checkpoint.every=100"]
    assert stages[0].checkpoint_every == 2000


def test_a_resumed_run_is_trained_in_two_stages() -> None:
    stages = plan_stages("resume", 2000)
    assert [(stage.run, stage.steps) for stage in stages] == [
        ("uninterrupted", 2000),
        ("resumed", 1000),
        ("resumed", 2000),
    ]
    assert len({stage.checkpoint_every for stage in stages}) == 1


def test_every_exchange_is_tried() -> None:
    stages = plan_stages("exchanges", 50)
    assert [stage.run for stage in stages] == ["all_reduce", "compressed", "low_rank", "local"]
    assert stages[3].overrides() == ["train.epochs=", "train.steps=50", "train.exchange=local"]


def test_one_two_and_four_workers_do_the_same_steps() -> None:
    assert [(stage.workers, stage.steps) for stage in plan_stages("workers", 50)] == [
        (1, 50),
        (2, 50),
        (4, 50),
    ]
