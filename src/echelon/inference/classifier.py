"""Pictures in, classes with probabilities out, in order, whatever the engine and the batches are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from echelon.data.images.image_store import Pixels
from echelon.errors import UserError
from echelon.inference.model_folder import load_picture_model
from echelon.inference.pictures import Guess, PictureEngine, PictureRules

_AT_A_TIME = 64


class Classifier:
    """A trained model that tells classes of pictures apart.

    >>> classifier = Classifier.load("runs/digits")
    >>> [guesses[0].name for guesses in classifier.classify(["seven.png"])]
    """

    task = "classification"

    def __init__(self, engine: PictureEngine, rules: PictureRules) -> None:
        self.engine = engine
        self.rules = rules

    def __repr__(self) -> str:
        return f"Classifier(engine={self.engine.name!r}, classes={len(self.rules.classes)})"

    @classmethod
    def load(
        cls, path: str | Path, *, checkpoint: str | None = None, threads: int | None = None
    ) -> Classifier:
        """Load a run folder or an exported folder; UserError if it is neither.

        `checkpoint` is a run's best, last, average or a checkpoint folder. A run is computed by PyTorch, an exported
        folder by what it was exported for, with `threads` threads.
        """
        return cls(*load_picture_model(Path(path), checkpoint, threads))

    @overload
    def classify(self, pictures: str | Path | bytes, top: int = 5) -> list[Guess]: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, pictures: Iterable[str | Path | bytes], top: int = 5) -> list[list[Guess]]: ...

    def classify(
        self, pictures: str | Path | bytes | Iterable[str | Path | bytes], top: int = 5
    ) -> list[Guess] | list[list[Guess]]:
        """The `top` most likely classes of one image, or of each of several; the most likely first.

        Images are files of any usual format: their paths, or their bytes. UserError names the one that cannot be read.
        """
        if isinstance(pictures, str | Path | bytes):
            return self.classify([pictures], top)[0]
        seen = [self._see(picture, number) for number, picture in enumerate(pictures, start=1)]
        starts = range(0, len(seen), _AT_A_TIME)
        return [guesses for start in starts for guesses in self.guess(seen[start : start + _AT_A_TIME], top)]

    def _see(self, picture: str | Path | bytes, number: int) -> Pixels:
        name = f"image {number}" if isinstance(picture, bytes) else str(picture)
        try:
            content = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
        except OSError as error:
            raise UserError(f"{name}: cannot be read: {error.strerror}") from None
        try:
            return self.rules.see(content)
        except (OSError, ValueError) as error:
            raise UserError(f"{name}: is not an image that can be read ({error})") from None

    def guess(self, pictures: Sequence[Pixels], top: int) -> list[list[Guess]]:
        """The same for pictures as the model sees them."""
        probabilities_NK = self.engine.probabilities(np.stack(pictures))
        best = np.argsort(-probabilities_NK, axis=1, kind="stable")[:, :top]
        names = self.rules.classes
        return [
            [Guess(names[index], float(row[index])) for index in indices]
            for row, indices in zip(probabilities_NK, best, strict=True)
        ]
