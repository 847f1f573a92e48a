"""Cross-entropy over classes, summed over pictures.

N  pictures    K  classes
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from echelon.models.loss import SummedLoss


def class_loss(
    logits_NK: Tensor, labels_N: Tensor, smoothing: float = 0.0, mixed: tuple[Tensor, float] | None = None
) -> SummedLoss:
    """The loss of logits; `mixed` holds the labels that pictures were blended with, and the share of the first."""
    logits_NK = logits_NK.float()
    smoothed = F.cross_entropy(logits_NK, labels_N, label_smoothing=smoothing, reduction="sum")
    nll = F.cross_entropy(logits_NK.detach(), labels_N, reduction="sum") if smoothing else smoothed.detach()
    if mixed is not None:
        others_N, share = mixed
        other = F.cross_entropy(logits_NK, others_N, label_smoothing=smoothing, reduction="sum")
        smoothed = share * smoothed + (1 - share) * other
        other_nll = F.cross_entropy(logits_NK.detach(), others_N, reduction="sum")
        nll = share * nll + (1 - share) * other_nll
    return SummedLoss(smoothed, nll)
