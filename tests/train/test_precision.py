from __future__ import annotations

import pytest
import torch

from echelon.train.precision import LossScaling, Precision, warning_of

CPU = torch.device("cpu")


def test_only_float16_scales_its_loss() -> None:
    assert Precision("float32", CPU).scale == 1.0
    assert Precision("bf16", CPU).scale == 1.0
    assert Precision("fp16", CPU).scale == 2.0**16


def test_autocast_sets_the_format_of_products() -> None:
    a = torch.ones(2, 2)
    for kind, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with Precision(kind, CPU).autocast():  # type: ignore[arg-type]
            assert (a @ a).dtype == dtype


def test_the_scale_halves_on_overflow_and_doubles_after_enough_good_steps() -> None:
    scaling = LossScaling(scale=1024.0, growth_every=3)
    scaling.overflowed()
    assert scaling.scale == 512.0
    for _ in range(3):
        scaling.succeeded()
    assert scaling.scale == 1024.0
    scaling.succeeded()
    scaling.overflowed()
    for _ in range(2):
        scaling.succeeded()
    assert scaling.scale == 512.0, "an overflow starts the count of good steps again"


def test_the_scale_stays_within_bounds() -> None:
    scaling = LossScaling(scale=2.0**-10, growth_every=1)
    scaling.overflowed()
    assert scaling.scale == 2.0**-10
    scaling.scale = 2.0**24
    scaling.succeeded()
    assert scaling.scale == 2.0**24


def test_state_survives_a_checkpoint() -> None:
    precision = Precision("fp16", CPU)
    assert precision.scaling is not None
    precision.scaling.overflowed()
    precision.scaling.succeeded()
    other = Precision("fp16", CPU)
    other.load_state(precision.state())
    assert other.scaling == precision.scaling


@pytest.mark.parametrize(("capability", "warns"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_a_gpu_without_bf16_is_said(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], warns: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    gpu = torch.device("cuda")
    said = 'Tesla T4 has no units for bf16 and computes it slowly; train.precision = "fp16" is faster there'

    assert warning_of("bf16", gpu) == (said if warns else None)
    assert warning_of("fp16", gpu) is None
    assert warning_of("bf16", CPU) is None
