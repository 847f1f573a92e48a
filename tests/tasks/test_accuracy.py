"""Top-1, top-5 and confusion, against counting by hand."""

from __future__ import annotations

import pytest
import torch

from echelon.tasks.accuracy import combine_guesses, ranked_guesses


def test_ranks_are_how_many_classes_were_likelier() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5], [2.0, 1.0, 0.0]])
    ranks, guesses = ranked_guesses(logits, torch.tensor([1, 0, 2]))
    assert (ranks, guesses) == ([0, 2, 2], [1, 1, 0])


def test_a_network_that_says_nothing_scores_by_chance() -> None:
    ranks, _ = ranked_guesses(torch.zeros(10, 10), torch.arange(10))
    assert ranks == list(range(10))


def test_what_is_not_a_number_is_never_right() -> None:
    ranks, _ = ranked_guesses(torch.full((2, 3), torch.nan), torch.tensor([0, 1]))
    assert ranks == [3, 3]


def test_scores_and_confusion_of_a_few_pictures() -> None:
    labels, ranks, guesses = [0, 0, 1, 2], [0, 5, 0, 1], [0, 2, 1, 0]
    metrics, details = combine_guesses(labels, ranks, guesses, ["cat", "dog", "cow"])
    assert metrics == {"top1": 50.0, "top5": 75.0}
    assert details["confusion"] == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert [entry["top1"] for entry in details["classes"]] == [50.0, 100.0, 0.0]
    assert details["confused"][0] == {"class": "cat", "taken_for": "cow", "images": 1}


def test_a_class_without_pictures_has_no_accuracy() -> None:
    _, details = combine_guesses([0], [0], [0], ["cat", "dog"])
    assert details["classes"][1] == {"name": "dog", "images": 0, "top1": None}


def test_many_classes_keep_only_the_pairs_most_confused() -> None:
    classes = [str(number) for number in range(101)]
    metrics, details = combine_guesses([3, 3], [1, 1], [4, 4], classes)
    assert metrics["top1"] == pytest.approx(0.0)
    assert "confusion" not in details
    assert details["confused"] == [{"class": "3", "taken_for": "4", "images": 2}]
