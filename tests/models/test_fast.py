"""The fast path against the plain model: the same weights, the same numbers dropped, so the same results."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from echelon.models.dropout import Drop
from echelon.models.fast import hidden_states
from echelon.models.kernels.ops import Attended, Kernels, Projections
from echelon.models.loss import summed_loss
from echelon.models.sequences import ROWS, Sequences, round_up, shift_right
from echelon.models.transformer import Dropouts, Transformer
from echelon.shapes.transformer import TransformerShape
from tests.models.test_transformer import make_model

SHAPE = TransformerShape(
    70, d_model=48, d_ff=80, heads=4, encoder_layers=2, decoder_layers=2, attention_biases=True
)
DROPOUTS = Dropouts(0.2, 0.1, 0.3)


def random_sentences(longest: int, count: int, seed: int) -> Sequences:
    chance = random.Random(seed)
    lengths = [longest, 1, *(chance.randint(1, longest) for _ in range(count - 2))]
    return Sequences.of([[*(chance.randint(4, 69) for _ in range(n - 1)), 1] for n in lengths])


def run(
    model: Transformer, kernels: Kernels | None, source: Sequences, target: Sequences, seed: int = 3
) -> tuple[Tensor, dict[str, Tensor]]:
    """The two sums of the loss, and the gradients by name."""
    torch.manual_seed(seed)
    shifted = shift_right(target, bos=2)
    hidden = model(source, shifted) if kernels is None else hidden_states(kernels, model, source, shifted)
    loss = summed_loss(hidden, model.embeddings.output_VD, target.tokens, 0.1, kernels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss.smoothed / len(target.tokens), parameters)
    return torch.stack([loss.smoothed.detach(), loss.nll]), dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("longest", [5, 60])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_equal_the_plain_model_with_dropout(
    kernels: Kernels, norm: Literal["pre", "post"], longest: int, tied: bool
) -> None:
    model = make_model(replace(SHAPE, norm=norm, tied=tied), DROPOUTS)
    source, target = random_sentences(longest, 5, seed=1), random_sentences(longest + 3, 5, seed=2)

    plain, plain_gradients = run(model, None, source, target)
    fast, fast_gradients = run(model, kernels, source, target)

    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
    for name, gradient in fast_gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-3, atol=2e-6, msg=name)


def test_frozen_weights_need_no_products_and_change_no_other_gradient(kernels: Kernels) -> None:
    model = make_model(SHAPE, DROPOUTS)
    source, target = random_sentences(9, 4, seed=1), random_sentences(9, 4, seed=2)

    def gradients() -> tuple[dict[str, Tensor], int]:
        torch.manual_seed(3)
        model.zero_grad()
        with FlopCounterMode(display=False) as counter:
            hidden = hidden_states(kernels, model, source, shift_right(target, bos=2))
            hidden.square().sum().backward()  # type: ignore[no-untyped-call]
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return found, counter.get_total_flops()

    whole, whole_flops = gradients()
    frozen = [
        name for name in whole if name.endswith(("qkv.weight", "kv.bias", "inner.weight", "outer.bias"))
    ]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    partial, flops = gradients()

    assert partial.keys() == whole.keys() - set(frozen)
    assert all(torch.equal(partial[name], whole[name]) for name in partial)
    rows = round_up(source.tokens).numel(), round_up(target.tokens).numel()
    assert whole_flops - flops == 2 * 2 * sum(rows) * (3 * 48 * 48 + 48 * 80)


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recomputing_changes_no_bit(kernels: Kernels, is_fast: bool, norm: Literal["pre", "post"]) -> None:
    source, target = random_sentences(9, 4, seed=1), random_sentences(9, 4, seed=2)
    used = kernels if is_fast else None
    model = make_model(replace(SHAPE, norm=norm), DROPOUTS)
    frugal = Transformer(model.shape, DROPOUTS, recomputes=True)
    frugal.load_state_dict(model.state_dict())

    losses, gradients = run(model, used, source, target)
    frugal_losses, frugal_gradients = run(frugal, used, source, target)

    assert torch.equal(losses, frugal_losses)
    assert all(torch.equal(gradients[name], frugal_gradients[name]) for name in gradients)


def test_recomputing_saves_most_of_the_memory(kernels: Kernels) -> None:
    source, target = random_sentences(20, 4, seed=1), random_sentences(20, 4, seed=2)

    def kept_bytes(recomputes: bool) -> int:
        model = Transformer(replace(SHAPE, encoder_layers=6), DROPOUTS, recomputes=recomputes)
        kept: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            hidden_states(kernels, model, source, target)
        return sum(kept)

    assert kept_bytes(recomputes=True) < 0.5 * kept_bytes(recomputes=False)


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_any_number_of_heads_and_no_biases(kernels: Kernels, heads: int) -> None:
    model = make_model(replace(SHAPE, d_model=66, heads=heads, attention_biases=False), DROPOUTS)
    source, target = random_sentences(20, 4, seed=1), random_sentences(20, 4, seed=2)

    plain, plain_gradients = run(model, None, source, target)
    fast, fast_gradients = run(model, kernels, source, target)

    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
    for name, gradient in fast_gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-3, atol=2e-6, msg=name)


def test_a_norm_adds_its_own_epsilon(kernels: Kernels) -> None:
    model = make_model(SHAPE)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.3
    source, target = random_sentences(20, 4, seed=1), random_sentences(20, 4, seed=2)

    plain, _ = run(model, None, source, target)
    fast, _ = run(model, kernels, source, target)

    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)


def test_products_meet_few_numbers_of_rows(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def linear(x_ND: Tensor, *weights: Tensor | None) -> Tensor:
        seen.add(len(x_ND))
        return torch.nn.functional.linear(x_ND, *weights)  # type: ignore[arg-type]

    monkeypatch.setattr("echelon.models.fast.F", SimpleNamespace(linear=linear))
    model = make_model(SHAPE, DROPOUTS)
    for num_sentences in range(1, 6):
        run(
            model,
            kernels,
            random_sentences(9, num_sentences, seed=1),
            random_sentences(7, num_sentences, seed=2),
        )
    assert seen <= {ROWS, 2 * ROWS}


def test_memory_of_attention_forward_grows_with_the_sentence_not_with_its_square(kernels: Kernels) -> None:
    sentence = Sequences.of([[4] * 6000])
    given = Projections.of_self(torch.randn(len(sentence.tokens), 3 * 8))
    how = Attended(sentence, sentence, heads=1, is_causal=False, drop=Drop())

    def most_memory_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten
    except OSError as error:
        pytest.skip(f"the memory that was used at most cannot be told: {error}")
    before = most_memory_bytes()
    kernels.attend(given, how)

    assert most_memory_bytes() - before < 6000 * 6000 * 4 / 2


def test_hidden_states_equal_in_evaluation(kernels: Kernels) -> None:
    model = make_model(SHAPE, DROPOUTS).eval()
    source, target = random_sentences(20, 4, seed=1), shift_right(random_sentences(9, 4, seed=2), bos=2)

    with torch.no_grad():
        torch.testing.assert_close(hidden_states(kernels, model, source, target), model(source, target))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_bf16_is_as_near_to_float32_as_autocast_is(kernels: Kernels, norm: Literal["pre", "post"]) -> None:
    model = make_model(replace(SHAPE, norm=norm), DROPOUTS)
    source, target = random_sentences(30, 8, seed=1), random_sentences(30, 8, seed=2)

    exact, exact_gradients = run(model, None, source, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, plain_gradients = run(model, None, source, target)
        fast, fast_gradients = run(model, kernels, source, target)

    def error(gradients: dict[str, Tensor]) -> float:
        squares = sum(float((gradients[name] - exact_gradients[name]).square().sum()) for name in gradients)
        return math.sqrt(squares / sum(float(g.square().sum()) for g in exact_gradients.values()))

    torch.testing.assert_close(fast, exact, rtol=2e-3, atol=0)
    assert error(fast_gradients) < 1.5 * error(plain_gradients) < 0.15


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing_but_rounding(kernels: Kernels, threads: int) -> None:
    model = make_model(SHAPE, DROPOUTS)
    source, target = random_sentences(30, 8, seed=1), random_sentences(30, 8, seed=2)
    alone, alone_gradients = run(model, kernels, source, target)

    torch.set_num_threads(threads)
    try:
        together, gradients = run(model, kernels, source, target)
        _, again_gradients = run(model, kernels, source, target)
    finally:
        torch.set_num_threads(1)

    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, alone_gradients[name], rtol=1e-4, atol=1e-6, msg=name)
        assert torch.equal(gradient, again_gradients[name]), f"{name} differs from run to run"


def test_what_is_not_a_number_reaches_the_loss(kernels: Kernels) -> None:
    model = make_model(SHAPE)
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.inner.bias[3] = float("nan")  # type: ignore[union-attr, operator]
    losses, _ = run(model, kernels, random_sentences(6, 3, seed=1), random_sentences(6, 3, seed=2))

    assert losses.isnan().all()


@pytest.mark.parametrize(("is_bf16", "tolerance"), [(False, 2e-3), (True, 2e-2)])
def test_hundred_steps_of_training_end_in_the_same_place(
    kernels: Kernels, is_bf16: bool, tolerance: float
) -> None:
    source, target = random_sentences(12, 12, seed=1), random_sentences(12, 12, seed=2)

    def train(use: Kernels | None) -> list[float]:
        model = make_model(SHAPE, DROPOUTS)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for step in range(100):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
                sums, gradients = run(model, use, source, target, seed=step)
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name]
            optimiser.step()
            losses.append(float(sums[1]) / len(target.tokens))
        return losses

    plain, fast = train(None), train(kernels)

    assert plain[-1] < 0.6 * plain[0], "a curve that does not move would prove nothing"
    assert fast == pytest.approx(plain, rel=tolerance)
