"""Top-1, top-5, accuracy by class and the confusion matrix, from the guesses for each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

MOST_IN_MATRIX = 100
"""Classes up to which the whole confusion matrix is kept."""
_CONFUSED_PAIRS = 20


def ranked_guesses(logits_NK: Tensor, labels_N: Tensor) -> tuple[list[int], list[int]]:
    """How many classes were thought likelier than the right one, and the likeliest, of each image.

    Classes that are as likely as the right one count as likelier if their number is lower, so that a network which
    says nothing scores by chance, and as a sorted list would.
    """
    right_N1 = logits_NK.gather(1, labels_N[:, None])
    is_before = (logits_NK == right_N1) & (
        labels_N.new_tensor(range(logits_NK.shape[1]))[None] < labels_N[:, None]
    )
    ranks_N = ((logits_NK > right_N1) | is_before).sum(1)
    ranks_N[right_N1[:, 0].isnan()] = logits_NK.shape[1]  # NaN is never right
    return ranks_N.tolist(), logits_NK.argmax(1).tolist()


def combine_guesses(
    labels: Sequence[int], ranks: Sequence[int], guesses: Sequence[int], classes: Sequence[str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Top-1 and top-5 in percent, and what is more than a number: accuracy by class, the confusion matrix."""
    places = np.array(ranks)
    metrics = {"top1": 100 * float((places == 0).mean()), "top5": 100 * float((places < 5).mean())}
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(matrix, (np.array(labels), np.array(guesses)), 1)
    counts, right = matrix.sum(1), matrix.diagonal()
    details: dict[str, Any] = {
        "classes": [
            {
                "name": name,
                "images": int(count),
                "top1": round(100 * int(hits) / int(count), 4) if count else None,
            }
            for name, count, hits in zip(classes, counts, right, strict=True)
        ],
        "confused": _most_confused(matrix, classes),
    }
    if len(classes) <= MOST_IN_MATRIX:
        details["confusion"] = matrix.tolist()
    return metrics, details


def _most_confused(
    matrix: np.ndarray[Any, np.dtype[np.int64]], classes: Sequence[str]
) -> list[dict[str, Any]]:
    """The pairs of classes that are most often taken for each other, the most frequent first."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED_PAIRS]
    pairs = (divmod(int(place), len(classes)) for place in order)
    return [
        {"class": classes[row], "taken_for": classes[column], "images": int(wrong[row, column])}
        for row, column in pairs
        if wrong[row, column]
    ]
