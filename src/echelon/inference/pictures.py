"""A classifier's input rules and results: plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from echelon.data.images.image_store import Normalisation, Pixels
from echelon.data.images.pixels import decode, middle
from echelon.errors import RunError
from echelon.runfolder import RunFolder, read_file

_MARGIN = 8 / 7
"""For models without a recorded `shorter`: its ratio to what the model sees."""
MOST_PIXELS, MOST_SHORTER = 1024, 4096
"""Of a side of what a model sees, and of the shorter side that images are scaled to before: a small image is enlarged
to it, so a stranger's model must not choose it freely."""


@dataclass(frozen=True)
class PictureRules:
    """A model's image format and class names."""

    classes: tuple[str, ...]
    pixels: int
    normalisation: Normalisation
    shorter: int | None = None
    """What an image's shorter side is brought to before the middle is taken, as in preparation."""
    takes_whole: bool = False
    """For models without a recorded `shorter`: whether it is `pixels`."""

    def __post_init__(self) -> None:
        for what, side, most in (
            ("pixels", self.pixels, MOST_PIXELS),
            ("shorter", self.shorter or 1, MOST_SHORTER),
        ):
            if not 1 <= side <= most:
                raise ValueError(f"{what} = {side} is not a number from 1 to {most:,}")

    def see(self, content: bytes) -> Pixels:
        """An image file as the model sees it: [P, P, 3]; OSError or ValueError if it is not an image."""
        shorter = self.shorter or (self.pixels if self.takes_whole else round(self.pixels * _MARGIN))
        return middle(decode(content, shorter), self.pixels)


@dataclass(frozen=True)
class Guess:
    """A class and its predicted probability."""

    name: str
    probability: float


class PictureEngine(Protocol):
    """An engine that computes probabilities."""

    name: str

    def probabilities(self, pictures: Pixels) -> NDArray[np.float32]:
        """[N, K] of images [N, P, P, 3]."""
        ...


def read_rules(run: RunFolder) -> PictureRules:
    """What the run's images.json says."""
    try:
        return TypeAdapter(PictureRules).validate_json(read_file(run.images))
    except (OSError, ValidationError) as error:
        raise RunError(f"{run.images}: does not say what the classes are: {error}") from None
