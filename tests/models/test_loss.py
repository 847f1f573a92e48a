from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.models import loss
from echelon.models.kernels.ops import Kernels
from echelon.models.loss import SummedLoss, summed_loss, twin_loss

VOCABULARY, WIDTH = 50, 16


def make_inputs(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    output = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    return hidden, output, torch.randint(VOCABULARY, (rows,), generator=generator)


def plain_loss(hidden: Tensor, output: Tensor, targets: Tensor, smoothing: float) -> SummedLoss:
    logits = (hidden @ output.T).to(torch.promote_types(hidden.dtype, torch.float32))
    smoothed = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    return SummedLoss(smoothed, F.cross_entropy(logits, targets, reduction="sum"))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_BYTES", 8 * VOCABULARY * 4)
    monkeypatch.setattr(loss, "BLOCK_BYTES", 3 * VOCABULARY * 4)


@pytest.fixture(params=["plain", "kernels"])
def some_kernels(request: pytest.FixtureRequest) -> Kernels | None:
    return request.getfixturevalue("kernels") if request.param == "kernels" else None


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 19])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_loss_and_gradients_equal_cross_entropy(rows: int, smoothing: float) -> None:
    hidden, output, targets = make_inputs(rows)

    ours = summed_loss(hidden, output, targets, smoothing)
    ours_gradients = torch.autograd.grad(ours.smoothed * -3.5, [hidden, output])
    plain = plain_loss(hidden, output, targets, smoothing)
    plain_gradients = torch.autograd.grad(plain.smoothed * -3.5, [hidden, output])

    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(ours_gradients, plain_gradients)


@pytest.mark.usefixtures("small_chunks")
def test_a_bias_is_added_to_the_logits(some_kernels: Kernels | None) -> None:
    hidden, output, targets = make_inputs(19)
    bias = torch.linspace(-5, 5, VOCABULARY)
    with_one = torch.cat([hidden, torch.ones(19, 1)], 1), torch.cat([output, bias[:, None]], 1)

    ours = summed_loss(hidden, output, targets, 0.1, some_kernels, bias_V=bias)
    ours_gradients = torch.autograd.grad(ours.smoothed, [hidden, output])
    plain = plain_loss(*with_one, targets, 0.1)
    plain_gradients = torch.autograd.grad(plain.smoothed, [hidden, output])
    twin = twin_loss(hidden[:18], output, targets[:9], 0.1, some_kernels, bias_V=bias, agreement=0.0)
    twins = plain_loss(with_one[0][:18], with_one[1], targets[:9].repeat(2), 0.1)

    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(ours_gradients, plain_gradients)
    torch.testing.assert_close(twin.nll, twins.nll / 2)


@pytest.mark.usefixtures("small_chunks")
def test_gradients_pass_gradcheck() -> None:
    hidden, output, targets = make_inputs(11, torch.float64)

    assert torch.autograd.gradcheck(lambda h, w: summed_loss(h, w, targets, 0.1).smoothed, (hidden, output))


def test_backward_can_run_twice() -> None:
    hidden, output, targets = make_inputs(5)
    smoothed = summed_loss(hidden, output, targets, 0.1).smoothed

    first = torch.autograd.grad(smoothed, [hidden, output], grad_outputs=torch.tensor(4.0), retain_graph=True)
    second = torch.autograd.grad(smoothed, [hidden, output])

    torch.testing.assert_close(first, tuple(4 * gradient for gradient in second))


@pytest.mark.parametrize("wanted", ["hidden", "output"])
def test_one_gradient_can_be_wanted_alone(wanted: str) -> None:
    hidden, output, targets = make_inputs(5)
    inputs = {"hidden": hidden, "output": output}
    plain = torch.autograd.grad(plain_loss(hidden, output, targets, 0.1).smoothed, inputs[wanted])
    for name, tensor in inputs.items():
        tensor.requires_grad_(name == wanted)

    ours = torch.autograd.grad(summed_loss(hidden, output, targets, 0.1).smoothed, inputs[wanted])

    torch.testing.assert_close(ours, plain)


def test_no_gradient_is_computed_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, output, targets = make_inputs(5)
    monkeypatch.setattr(loss, "_into_gradient", None)

    with torch.no_grad():
        ours = summed_loss(hidden, output, targets, 0.1)

    assert not ours.smoothed.requires_grad
    torch.testing.assert_close(ours, plain_loss(hidden, output, targets, 0.1))


def test_nll_carries_no_gradient() -> None:
    hidden, output, targets = make_inputs(5)

    assert not summed_loss(hidden, output, targets, 0.1).nll.requires_grad


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_close_and_float32_outside(dtype: torch.dtype) -> None:
    hidden, output, targets = make_inputs(19)

    with torch.autocast("cpu", dtype=dtype):
        ours = summed_loss(hidden, output, targets, 0.1)
        ours_gradients = torch.autograd.grad(ours.smoothed, [hidden, output])
    plain = plain_loss(hidden, output, targets, 0.1)
    plain_gradients = torch.autograd.grad(plain.smoothed, [hidden, output])

    assert {tensor.dtype for tensor in (*ours, *ours_gradients)} == {torch.float32}
    torch.testing.assert_close(ours, plain, rtol=1e-2, atol=0)
    torch.testing.assert_close(ours_gradients, plain_gradients, rtol=0, atol=0.05)


def test_autocast_uses_products_in_its_dtype() -> None:
    hidden, output, targets = make_inputs(19)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = summed_loss(hidden, output, targets)
    exactly = plain_loss(hidden.bfloat16(), output.bfloat16(), targets, 0)

    torch.testing.assert_close(ours.nll, exactly.nll)


def test_small_gradients_survive_float16() -> None:
    """A probability of 2.5e-8 is zero in float16, but with the loss scaled it is a gradient that counts."""
    rows = 1000
    hidden = torch.tensor([[1.0, 0.0]]).repeat(rows, 1).requires_grad_()
    output = torch.tensor([[17.5, 0.0], [0.0, 1.0]], requires_grad=True)

    with torch.autocast("cpu", dtype=torch.float16):
        smoothed = summed_loss(hidden, output, torch.zeros(rows, dtype=torch.int64)).smoothed
    of_hidden, of_output = torch.autograd.grad(smoothed, [hidden, output], grad_outputs=torch.tensor(65536.0))

    expected = torch.tensor(-17.5).sigmoid() * 65536
    torch.testing.assert_close(of_hidden[0, 1], expected, rtol=0.02, atol=0)
    torch.testing.assert_close(of_output[1, 0], rows * expected, rtol=0.02, atol=0)


@pytest.mark.usefixtures("small_chunks")
def test_full_logits_never_exist() -> None:
    hidden, output, targets = make_inputs(64)

    with torch.profiler.profile(profile_memory=True) as profile:
        summed_loss(hidden, output, targets, 0.1).smoothed.backward()  # type: ignore[no-untyped-call]

    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < 64 * VOCABULARY * 4


def plain_twin_loss(
    hidden: Tensor, output: Tensor, targets: Tensor, agreement: float, smoothing: float
) -> SummedLoss:
    """As the paper's authors write it, halved."""
    both = plain_loss(hidden, output, targets.repeat(2), smoothing)
    logs = (hidden @ output.T).to(torch.promote_types(hidden.dtype, torch.float32)).log_softmax(dim=1)
    first, second = logs.chunk(2)
    apart = (
        F.kl_div(first, second, log_target=True, reduction="sum")
        + F.kl_div(second, first, log_target=True, reduction="sum")
    ) / 2
    return SummedLoss((both.smoothed + agreement * apart) / 2, both.nll / 2)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tokens", [1, 4, 11])
@pytest.mark.parametrize("agreement", [0.0, 5.0])
def test_twins_and_their_gradients_equal_the_formula(
    tokens: int, agreement: float, some_kernels: Kernels | None
) -> None:
    hidden, output, _ = make_inputs(2 * tokens)
    targets = make_inputs(tokens)[2]

    ours = twin_loss(hidden, output, targets, 0.1, some_kernels, agreement=agreement)
    ours_gradients = torch.autograd.grad(ours.smoothed * -3.5, [hidden, output])
    plain = plain_twin_loss(hidden, output, targets, agreement, 0.1)
    plain_gradients = torch.autograd.grad(plain.smoothed * -3.5, [hidden, output])

    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours_gradients, plain_gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_chunks")
def test_gradients_of_twins_pass_gradcheck() -> None:
    hidden, output, _ = make_inputs(10, torch.float64)
    targets = make_inputs(5)[2]

    def loss_of(hidden: Tensor, output: Tensor) -> Tensor:
        return twin_loss(hidden, output, targets, 0.1, agreement=5.0).smoothed

    assert torch.autograd.gradcheck(loss_of, (hidden, output))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_twins_under_autocast_are_close(dtype: torch.dtype, some_kernels: Kernels | None) -> None:
    hidden, output, _ = make_inputs(22)
    targets = make_inputs(11)[2]

    with torch.autocast("cpu", dtype=dtype):
        ours = twin_loss(hidden, output, targets, 0.1, some_kernels, agreement=5.0)
        ours_gradients = torch.autograd.grad(ours.smoothed, [hidden, output])
    plain = plain_twin_loss(hidden, output, targets, 5.0, 0.1)
    plain_gradients = torch.autograd.grad(plain.smoothed, [hidden, output])

    torch.testing.assert_close(ours, plain, rtol=1e-2, atol=0)
    for of_ours, of_plain in zip(ours_gradients, plain_gradients, strict=True):
        assert (of_ours - of_plain).norm() < 0.02 * of_plain.norm()


def test_equal_twins_are_one() -> None:
    hidden, output, targets = make_inputs(6)

    twins = twin_loss(hidden.repeat(2, 1), output, targets, 0.1, agreement=5.0)

    torch.testing.assert_close(twins, summed_loss(hidden, output, targets, 0.1))
