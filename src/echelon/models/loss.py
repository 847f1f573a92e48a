"""The loss together with the output layer, a few rows at a time, so that the full logits never exist.

M  target tokens    C  rows of a chunk    D  d_model    V  vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_NUMBERS = 4 * 1024 * 1024
"""Logits that exist at a time: 16 MB of float32, enough rows for fast products."""

FLOAT16_GAIN = 256.0
"""In float16, where all below 6e-8 is zero, the gradients of logits are kept this many times larger."""


class SummedLoss(NamedTuple):
    """Sums over target tokens, not means: those of slots and workers add up."""

    smoothed: Tensor
    """What is trained on: the cross-entropy with label smoothing."""
    nll: Tensor
    """The negative log-likelihood in nats, for perplexity; carries no gradient."""


def summed_loss(
    hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, smoothing: float = 0.0
) -> SummedLoss:
    """Cross-entropy of the logits `hidden @ output.T`, smoothed over the whole vocabulary as torch does it.

    Sums are in float32 at least; under autocast the products are in its dtype. Gradients are computed with
    the loss, while a chunk's logits exist, and only where grad mode wants them.
    """
    if torch.is_grad_enabled() and (hidden_MD.requires_grad or output_VD.requires_grad):
        return SummedLoss(*_output_loss(hidden_MD, output_VD, targets_M, smoothing))
    sums = _loss_by_chunks(hidden_MD, output_VD, targets_M, smoothing, _Gradients(None, None))
    return SummedLoss(*sums)


class _OutputLoss(torch.autograd.Function):
    # No custom_fwd and custom_bwd: the forward casts by itself, and the backward only multiplies by a number,
    # which autocast leaves alone.

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, smoothing: float
    ) -> SummedLoss:
        dtype = _sum_dtype(hidden_MD)
        wants_hidden, wants_output = ctx.needs_input_grad[:2]
        gradients = _Gradients(
            hidden_MD=torch.empty_like(hidden_MD, dtype=dtype) if wants_hidden else None,
            output_VD=torch.zeros_like(output_VD, dtype=dtype) if wants_output else None,
        )
        sums = _loss_by_chunks(hidden_MD, output_VD, targets_M, smoothing, gradients)
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


_output_loss: Callable[[Tensor, Tensor, Tensor, float], SummedLoss] = _OutputLoss.apply


@dataclass(frozen=True)
class _Gradients:
    """Where the gradients of the smoothed sum go; None where nobody wants one."""

    hidden_MD: Tensor | None
    output_VD: Tensor | None


def _loss_by_chunks(
    hidden_MD: Tensor, output_VD: Tensor, targets_M: Tensor, smoothing: float, gradients: _Gradients
) -> SummedLoss:
    """The two sums; fills in the `gradients`."""
    dtype = _product_dtype(hidden_MD)
    smoothed, nll = hidden_MD.new_zeros(2, dtype=_sum_dtype(hidden_MD)).unbind()
    with torch.no_grad(), torch.autocast(hidden_MD.device.type, enabled=False):
        weight_VD = output_VD.to(dtype)
        rows = max(1, CHUNK_NUMBERS // len(output_VD))
        for start in range(0, len(hidden_MD), rows):
            chunk = slice(start, start + rows)
            hidden_CD, targets_C1 = hidden_MD[chunk].to(dtype), targets_M[chunk, None]
            logits_CV = (hidden_CD @ weight_VD.T).to(smoothed.dtype)
            log_probabilities_CV = logits_CV.log_softmax(dim=1)
            chunk_nll = -log_probabilities_CV.gather(1, targets_C1).sum()
            nll += chunk_nll
            smoothed += (1 - smoothing) * chunk_nll
            if smoothing:
                smoothed -= smoothing / len(output_VD) * log_probabilities_CV.sum()
            if gradients.hidden_MD is not None or gradients.output_VD is not None:
                d_logits_CV = _into_gradient(log_probabilities_CV, targets_C1, smoothing)
                _add_gradients(d_logits_CV, hidden_CD, weight_VD, gradients, chunk)
    return SummedLoss(smoothed, nll)


def _into_gradient(log_probabilities_CV: Tensor, targets_C1: Tensor, smoothing: float) -> Tensor:
    """The gradient of the smoothed sum by the logits, in place of the log-probabilities."""
    gradient_CV = log_probabilities_CV.exp_()
    if smoothing:
        gradient_CV -= smoothing / gradient_CV.shape[1]
    minus_C1 = gradient_CV.new_full(targets_C1.shape, smoothing - 1)
    return gradient_CV.scatter_add_(1, targets_C1, minus_C1)


def _add_gradients(
    d_logits_CV: Tensor, hidden_CD: Tensor, weight_VD: Tensor, gradients: _Gradients, chunk: slice
) -> None:
    gain = FLOAT16_GAIN if hidden_CD.dtype == torch.float16 else 1.0
    d_logits_CV = (d_logits_CV if gain == 1 else d_logits_CV * gain).to(hidden_CD.dtype)
    if gradients.hidden_MD is not None:
        gradients.hidden_MD[chunk] = d_logits_CV @ weight_VD
        if gain != 1:
            gradients.hidden_MD[chunk] /= gain
    if gradients.output_VD is not None:
        # Here the gain leaves with the other factor: a sum over rows that is as much larger may overflow.
        gradients.output_VD.add_(d_logits_CV.T @ (hidden_CD / gain))


def _product_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
