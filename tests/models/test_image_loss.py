"""The loss of classes: sums, smoothing, mixing."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from echelon.models.image_loss import class_loss


def test_sums_of_slots_add_up_to_the_sum_of_the_step() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 0])
    whole = class_loss(logits, labels, 0.1)
    parts = [class_loss(logits[s], labels[s], 0.1) for s in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(whole.smoothed, parts[0].smoothed + parts[1].smoothed)
    torch.testing.assert_close(whole.nll, F.cross_entropy(logits, labels, reduction="sum"))


def test_a_blend_is_trained_on_both_labels_by_their_shares() -> None:
    logits, labels = torch.randn(3, 4), torch.tensor([0, 1, 2])
    others = labels.flip(0)
    both = class_loss(logits, labels, mixed=(others, 0.7)).smoothed
    targets = 0.7 * F.one_hot(labels, 4) + 0.3 * F.one_hot(others, 4)
    torch.testing.assert_close(both, F.cross_entropy(logits, targets, reduction="sum"))
