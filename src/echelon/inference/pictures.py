"""What a classifier expects of its pictures, and what comes out: plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from echelon.data.images.decoding import decode, middle
from echelon.data.images.store import Normalisation, Pixels
from echelon.errors import RunError
from echelon.runfolder import RunFolder

_MARGIN = 8 / 7
"""A picture's shorter side is brought to this multiple of what the model sees, before the middle is taken."""


@dataclass(frozen=True)
class PictureRules:
    """What a model expects of its pictures, and what it calls its classes."""

    classes: tuple[str, ...]
    pixels: int
    normalisation: Normalisation
    takes_whole: bool = False
    """Whether a picture is brought to the size as a whole: of sets whose pictures are all alike."""

    def see(self, content: bytes) -> Pixels:
        """A picture file as the model sees it: [P, P, 3]; OSError or ValueError where it is no picture."""
        shorter = self.pixels if self.takes_whole else round(self.pixels * _MARGIN)
        return middle(decode(content, shorter), self.pixels)


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model takes it to be."""

    name: str
    probability: float


class PictureEngine(Protocol):
    """What computes."""

    name: str

    def probabilities(self, pictures: Pixels) -> NDArray[np.float32]:
        """[N, K] of pictures [N, P, P, 3]."""
        ...


def read_rules(run: RunFolder) -> PictureRules:
    """What the run's images.json says."""
    try:
        return TypeAdapter(PictureRules).validate_json(run.images.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{run.images}: does not say what the classes are: {error}") from None
