"""The loss together with the output layer, a few rows at a time, so that the full logits never exist.

M  target tokens    C  rows of a chunk    R  rows of a block of it    T  twins of it    D  d_model    V  vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from echelon.models.kernels.ops import Kernels, supports
from echelon.models.sequences import round_up

CHUNK_BYTES = 16 * 1024 * 1024
"""Logits that exist at a time: enough rows for fast products."""

BLOCK_BYTES = 1024 * 1024
"""Float32 logits that exist at a time on a CPU: few enough to stay in its cache."""

FLOAT16_GAIN = 256.0
"""In float16, whose smallest number is 6e-8, the gradients of logits are kept this many times larger."""


class SummedLoss(NamedTuple):
    """Sums over target tokens, not means: those of slots and workers add up."""

    smoothed: Tensor
    """What is trained on: the cross-entropy with label smoothing, and whatever is added to it."""
    nll: Tensor
    """The negative log-likelihood in nats, for perplexity; carries no gradient."""


def summed_loss(
    hidden_MD: Tensor,
    output_VD: Tensor,
    targets_M: Tensor,
    smoothing: float = 0.0,
    kernels: Kernels | None = None,
    *,
    bias_V: Tensor | None = None,
) -> SummedLoss:
    """Cross-entropy of the logits `hidden @ output.T + bias`, smoothed over the whole vocabulary as torch does it.

    Sums are in float32 at least; under autocast the products are in its dtype. Gradients are computed with
    the loss, while a chunk's logits exist, and only if gradients are enabled.
    """
    return _summed(hidden_MD, output_VD, targets_M, _with_bias(_RowLoss(smoothing, kernels), bias_V))


def twin_loss(
    hidden_2MD: Tensor,
    output_VD: Tensor,
    targets_M: Tensor,
    smoothing: float = 0.0,
    kernels: Kernels | None = None,
    *,
    bias_V: Tensor | None = None,
    agreement: float,
) -> SummedLoss:
    """R-Drop (Liang et al., 2021) of two passes over the same tokens: all rows of the one, then all of the other.

    The mean of the two losses, and `agreement` / 4 times the sum of the two divergences, from each pass's distribution
    to the other's: half of what the paper has, since there the two losses are added up.
    """
    count, width = len(targets_M), hidden_2MD.shape[1]
    neighbours_2MD = hidden_2MD.view(2, count, width).transpose(0, 1).reshape(2 * count, width)
    to_losses = _with_bias(_Twins(smoothing, agreement / 4, kernels), bias_V)
    return _summed(neighbours_2MD, output_VD, targets_M.repeat_interleave(2), to_losses)


_ToLosses = Callable[[SummedLoss, Tensor, Tensor, bool], None]


def _with_bias(to_losses: _ToLosses, bias_V: Tensor | None) -> _ToLosses:
    """The same of logits that lack their bias, which has no gradient."""
    if bias_V is None:
        return to_losses

    def add_bias(sums: SummedLoss, logits_CV: Tensor, targets_C: Tensor, wants_gradient: bool) -> None:
        to_losses(sums, logits_CV.add_(bias_V), targets_C, wants_gradient)

    return add_bias


def _summed(hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, to_losses: _ToLosses) -> SummedLoss:
    if torch.is_grad_enabled() and (hidden_MD.requires_grad or output_VD.requires_grad):
        return SummedLoss(*_output_loss(hidden_MD, output_VD, targets_M, to_losses))
    return _loss_by_chunks(hidden_MD, output_VD, targets_M, to_losses, _Gradients(None, None))


class _OutputLoss(torch.autograd.Function):
    # No custom_fwd and custom_bwd: the forward casts by itself, and the backward only multiplies by a number,
    # which autocast leaves alone.

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, to_losses: _ToLosses
    ) -> SummedLoss:
        dtype = _sum_dtype(hidden_MD)
        wants_hidden, wants_output = ctx.needs_input_grad[:2]
        gradients = _Gradients(
            hidden_MD=torch.empty_like(hidden_MD, dtype=dtype) if wants_hidden else None,
            output_VD=torch.zeros_like(output_VD, dtype=dtype) if wants_output else None,
        )
        sums = _loss_by_chunks(hidden_MD, output_VD, targets_M, to_losses, gradients)
        ctx.save_for_backward(gradients.hidden_MD, gradients.output_VD)
        ctx.dtypes = hidden_MD.dtype, output_VD.dtype
        ctx.mark_non_differentiable(sums.nll)
        return sums

    @staticmethod
    def backward(ctx: Any, of_smoothed: Tensor, of_nll: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if gradient is None else (gradient * of_smoothed).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None


_output_loss: Callable[[Tensor, Tensor, Tensor, _ToLosses], SummedLoss] = _OutputLoss.apply


@dataclass(frozen=True)
class _Gradients:
    """Buffers for the gradients of the smoothed sum; None if none is needed."""

    hidden_MD: Tensor | None
    output_VD: Tensor | None

    @property
    def are_wanted(self) -> bool:
        return self.hidden_MD is not None or self.output_VD is not None


def _loss_by_chunks(
    hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, to_losses: _ToLosses, gradients: _Gradients
) -> SummedLoss:
    """The two sums; fills in the `gradients`."""
    sums = SummedLoss(*hidden_MD.new_zeros(2, dtype=_sum_dtype(hidden_MD)).unbind())
    dtype = _product_dtype(hidden_MD)
    with torch.no_grad(), torch.autocast(hidden_MD.device.type, enabled=False):
        weight_VD = output_VD.to(dtype)
        for chunk in _slices(len(hidden_MD), CHUNK_BYTES // (len(output_VD) * dtype.itemsize)):
            targets_C = targets_M[chunk]
            hidden_CD = round_up(hidden_MD[chunk].to(dtype))
            logits_CV = hidden_CD @ weight_VD.T
            to_losses(sums, logits_CV[: len(targets_C)], targets_C, gradients.are_wanted)
            logits_CV[len(targets_C) :] = 0
            _add_gradients(gradients, chunk, logits_CV, hidden_CD, weight_VD)
    return sums


@dataclass(frozen=True)
class _RowLoss:
    """The loss of each row by itself."""

    smoothing: float
    kernels: Kernels | None

    def __call__(self, sums: SummedLoss, logits_CV: Tensor, targets_C: Tensor, wants_gradient: bool) -> None:
        """Add the losses of a chunk to the sums; if wanted, the gradient overwrites the logits."""
        if self.kernels is not None and supports(logits_CV.dtype):
            _add_all(sums, self.kernels.losses_(logits_CV, targets_C, self.smoothing, wants_gradient))
            return
        gain = _gain(logits_CV.dtype)
        for block in _slices(len(logits_CV), _block_rows(logits_CV)):
            targets_R1 = targets_C[block, None]
            log_probabilities_RV = logits_CV[block].to(sums.nll.dtype).log_softmax(dim=1)
            _add_losses(sums, log_probabilities_RV, targets_R1, self.smoothing)
            if wants_gradient:
                logits_CV[block] = _into_gradient(log_probabilities_RV, targets_R1, self.smoothing, gain)


@dataclass(frozen=True)
class _Twins:
    """The same of twins, which are neighbouring rows: their mean loss, and `weight` times their divergences."""

    smoothing: float
    weight: float
    kernels: Kernels | None

    def __call__(self, sums: SummedLoss, logits_CV: Tensor, targets_C: Tensor, wants_gradient: bool) -> None:
        if self.kernels is not None and supports(logits_CV.dtype):
            given = logits_CV, targets_C, self.smoothing, self.weight, wants_gradient
            _add_all(sums, self.kernels.twin_losses_(*given))
            return
        gain = _gain(logits_CV.dtype)
        for block in _slices(len(logits_CV), _block_rows(logits_CV)):
            targets_R1 = targets_C[block, None]
            log_probabilities_RV = logits_CV[block].to(sums.nll.dtype).log_softmax(dim=1)
            _add_losses(sums, log_probabilities_RV, targets_R1, self.smoothing, share=0.5)
            pulls_RV = _add_divergences(sums, log_probabilities_RV, self.weight)
            if wants_gradient:
                gradient_RV = _into_gradient(log_probabilities_RV, targets_R1, self.smoothing, gain / 2)
                logits_CV[block] = gradient_RV.add_(pulls_RV, alpha=gain)


def _add_all(sums: SummedLoss, losses: tuple[Tensor, Tensor]) -> None:
    nlls, smoothed = losses
    sums.nll.add_(nlls.sum())
    sums.smoothed.add_(smoothed.sum())


def _add_divergences(sums: SummedLoss, log_probabilities_RV: Tensor, weight: float) -> Tensor:
    """Add those of all twins to the sum; returns their gradient by the logits."""
    logs_T2V = log_probabilities_RV.view(-1, 2, log_probabilities_RV.shape[1])
    probabilities_T2V = logs_T2V.exp()
    to_other_T2V = logs_T2V - logs_T2V.flip(1)
    divergences_T21 = (probabilities_T2V * to_other_T2V).sum(dim=2, keepdim=True)
    sums.smoothed.add_(divergences_T21.sum(), alpha=weight)
    own_T2V = probabilities_T2V * (to_other_T2V - divergences_T21)
    return (own_T2V + probabilities_T2V - probabilities_T2V.flip(1)).mul_(weight).flatten(0, 1)


def _add_losses(
    sums: SummedLoss, log_probabilities_RV: Tensor, targets_R1: Tensor, smoothing: float, share: float = 1.0
) -> None:
    nll = -log_probabilities_RV.gather(1, targets_R1).sum()
    sums.nll.add_(nll, alpha=share)
    sums.smoothed.add_(nll, alpha=share * (1 - smoothing))
    if smoothing:
        even = smoothing / log_probabilities_RV.shape[1]
        sums.smoothed.sub_(log_probabilities_RV.sum(), alpha=share * even)


def _into_gradient(log_probabilities_RV: Tensor, targets_R1: Tensor, smoothing: float, gain: float) -> Tensor:
    """The gradient of the smoothed sum by the logits, `gain` times, in place of the log-probabilities."""
    gradient_RV = log_probabilities_RV.exp_()
    if smoothing:
        gradient_RV -= smoothing / gradient_RV.shape[1]
    gradient_RV.scatter_add_(1, targets_R1, gradient_RV.new_full(targets_R1.shape, smoothing - 1))
    return gradient_RV if gain == 1 else gradient_RV.mul_(gain)


def _add_gradients(
    gradients: _Gradients, chunk: slice, d_logits_CV: Tensor, hidden_CD: Tensor, weight_VD: Tensor
) -> None:
    gain = _gain(d_logits_CV.dtype)
    if gradients.hidden_MD is not None:
        gradients.hidden_MD[chunk] = (d_logits_CV @ weight_VD)[: len(gradients.hidden_MD[chunk])]
        if gain != 1:
            gradients.hidden_MD[chunk] /= gain
    if gradients.output_VD is not None:
        # Here the gain leaves with the other factor: a sum over rows that is as much larger may overflow.
        factor_CD = hidden_CD if gain == 1 else hidden_CD / gain
        gradients.output_VD.add_(d_logits_CV.T @ factor_CD)


def _gain(dtype: torch.dtype) -> float:
    return FLOAT16_GAIN if dtype == torch.float16 else 1.0


def _block_rows(logits_CV: Tensor) -> int:
    on_cpu = BLOCK_BYTES // (4 * logits_CV.shape[1])
    return on_cpu if logits_CV.device.type == "cpu" else len(logits_CV)


def _slices(length: int, size: int) -> list[slice]:
    """Of an even size, which keeps twins together."""
    size = max(2, size - size % 2)
    return [slice(start, start + size) for start in range(0, length, size)]


def _product_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
