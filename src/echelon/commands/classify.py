"""`classify`: picture files to classes with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echelon.inference.classifier import Classifier


def classify(
    model: Path, pictures: Sequence[Path], *, checkpoint: str | None, top: int
) -> list[dict[str, Any]]:
    """Of each file its likeliest classes, the likeliest first; the keys of `classify --json`."""
    classifier = Classifier.load(model, checkpoint=checkpoint)
    return [
        {
            "file": str(path),
            "classes": [{"class": guess.name, "probability": guess.probability} for guess in guesses],
        }
        for path, guesses in zip(pictures, classifier.classify(pictures, top), strict=True)
    ]
