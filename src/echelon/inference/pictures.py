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
"""Of models from before `shorter` was written down: what it is, over what the model sees."""


@dataclass(frozen=True)
class PictureRules:
    """A model's picture format and class names."""

    classes: tuple[str, ...]
    pixels: int
    normalisation: Normalisation
    shorter: int | None = None
    """What a picture's shorter side is brought to before the middle is taken, as in preparation."""
    takes_whole: bool = False
    """Of models from before `shorter` was written down: whether it is `pixels`."""

    def see(self, content: bytes) -> Pixels:
        """A picture file as the model sees it: [P, P, 3]; OSError or ValueError if it is no picture."""
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
        """[N, K] of pictures [N, P, P, 3]."""
        ...


def read_rules(run: RunFolder) -> PictureRules:
    """What the run's images.json says."""
    try:
        return TypeAdapter(PictureRules).validate_json(read_file(run.images))
    except (OSError, ValidationError) as error:
        raise RunError(f"{run.images}: does not say what the classes are: {error}") from None
