"""`echelon classify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.options import Json, ModelOption, Which
from echelon.cli.output import note_unscored, show


def classify(
    model: ModelOption,
    pictures: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    *,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name per image.")] = 3,
    checkpoint: Which = None,
    json_: Json = False,
) -> None:
    """Name the most likely classes of images, with probabilities."""
    from echelon.commands.results import format_classification
    from echelon.inference.classifier import Classifier

    note_unscored(model, checkpoint)
    found = [
        {
            "file": str(path),
            "classes": [{"class": guess.name, "probability": guess.probability} for guess in guesses],
        }
        for path, guesses in zip(
            pictures, Classifier.load(model, checkpoint=checkpoint).classify(pictures, top), strict=True
        )
    ]
    show(json_, {"pictures": found}, format_classification(found))
