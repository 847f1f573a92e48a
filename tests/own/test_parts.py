"""Optimisers and schedules of one's own, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.own.conftest import EXAMPLES, Verb

PARTS = """
import torch


def adam(groups, beta1=0.9, **settings):
    return torch.optim.AdamW(groups, betas=(beta1, 0.98), eps=1e-9, fused=True)


def triangle(step, steps):
    return 1 - step / steps


class Sums(torch.optim.Optimizer):
    def __init__(self, groups):
        super().__init__(groups, {"lr": 1.0})

    def step(self):
        for group in self.param_groups:
            for part in group["params"]:
                state = self.state[part]
                state.setdefault("sum", torch.zeros_like(part)).add_(part.grad)
                part.sub_(state["sum"].sign() * group["lr"])
"""
OWN = """
[optimiser]
kind = "own"
make = "parts:adam"
beta1 = 0.9
weight_decay = 0.01

[schedule]
kind = "own"
rate = "parts:triangle"
learning_rate = 0.05
"""
SHIPPED = """
[optimiser]
kind = "adamw"

[schedule]
kind = "polynomial"
learning_rate = 0.05
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """The first example without its schedule; `parts` can be imported."""
    (tmp_path / "parts.py").write_text(PARTS)
    text = (EXAMPLES / "sentences.toml").read_text()
    return text.replace('[schedule]\nkind = "fixed"\nlearning_rate = 0.05\n', "").replace("= 60", "= 12")


def weights(run: Path) -> dict[str, bytes]:
    newest = max((run / "checkpoints").glob("step-*"))
    return {name: each.tobytes() for name, each in load_file(newest / "model.safetensors").items()}


def test_an_own_optimiser_is_stepped_as_the_same_one_of_echelons(
    recipe: str, run_verb: Verb, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(
        recipe
        + OWN.replace('rate = "parts:triangle"\n', "").replace(
            'kind = "own"\nlearning_rate', 'kind = "fixed"\nlearning_rate'
        )
    )
    (tmp_path / "shipped.toml").write_text(recipe + SHIPPED.replace('"polynomial"', '"fixed"'))
    for name in ("own", "shipped"):
        run_verb("train", tmp_path / f"{name}.toml", "--run", tmp_path / name)
    assert weights(tmp_path / "own") == weights(tmp_path / "shipped")


def test_an_own_optimiser_and_schedule_resume_to_the_same_bits(
    recipe: str, run_verb: Verb, tmp_path: Path
) -> None:
    file = tmp_path / "own.toml"
    file.write_text((recipe + OWN).replace("parts:adam", "parts:Sums").replace("beta1 = 0.9\n", ""))
    whole, paused = tmp_path / "whole", tmp_path / "paused"
    assert run_verb("describe", file)["learning_rates"]["1"] == pytest.approx(0.05 * 11 / 12)
    run_verb("train", file, "--run", whole, "--workers", 2)
    run_verb("train", file, "--run", paused, "--workers", 2, "--set", "train.stop_at=5", status=0)
    run_verb("train", file, "--run", paused, "--workers", 2)
    assert weights(paused) == weights(whole)


def test_batch_norm_of_torch_is_refused_and_the_other_is_named(run_verb: Verb, tmp_path: Path) -> None:
    source = (EXAMPLES / "discs.py").read_text().replace("(BatchNorm(width), ", "(nn.BatchNorm2d(width), ")
    (tmp_path / "discs.py").write_text(source)
    shutil.copy(EXAMPLES / "discs.toml", tmp_path)
    answer = run_verb("train", tmp_path / "discs.toml", "--run", tmp_path / "run", status=2)
    assert "use echelon.models.batch_norm.BatchNorm" in answer["error"]


def test_a_loss_that_is_no_sum_is_refused(run_verb: Verb, tmp_path: Path) -> None:
    source = (EXAMPLES / "sentences.py").read_text().replace('reduction="sum"', 'reduction="none"')
    (tmp_path / "sentences.py").write_text(source)
    answer = run_verb("train", EXAMPLES / "sentences.toml", "--run", tmp_path / "run", status=1)
    assert "must return a sum" in answer["error"]


def test_an_unmeasured_score_is_named(run_verb: Verb, tmp_path: Path) -> None:
    settings = [
        "--set",
        "evaluate.scores=['f1']",
        "--set",
        "checkpoint.best=loss",
        "--set",
        "evaluate.every=1",
    ]
    answer = run_verb("train", EXAMPLES / "sentences.toml", "--run", tmp_path / "run", *settings, status=1)
    assert "evaluate.scores names f1" in answer["error"]
