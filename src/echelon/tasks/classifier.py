"""From picture files to classes with probabilities, in order, whatever the batches are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from echelon.data.images.decoding import decode, middle
from echelon.data.images.store import Normalisation, Pixels
from echelon.errors import RunError
from echelon.runfolder import RunFolder
from echelon.tasks.classification import Normaliser, classify

_AT_A_TIME = 64
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


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model takes it to be."""

    name: str
    probability: float


def read_rules(run: RunFolder) -> PictureRules:
    """What the run's images.json says."""
    try:
        return TypeAdapter(PictureRules).validate_json(run.images.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{run.images}: does not say what the classes are: {error}") from None


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode, and what it expects of its pictures."""

    model: nn.Module
    rules: PictureRules
    device: torch.device
    flip: bool = False

    def classify(self, files: Sequence[bytes], top: int = 5) -> list[list[Guess]]:
        """The `top` likeliest classes of each picture file; OSError or ValueError where one is no picture."""
        return list(self._guesses([self.see(content) for content in files], top))

    def see(self, content: bytes) -> Pixels:
        """A picture file as the model sees it: [P, P, 3]."""
        pixels = self.rules.pixels
        shorter = pixels if self.rules.takes_whole else round(pixels * _MARGIN)
        return middle(decode(content, shorter), pixels)

    def _guesses(self, pictures: Sequence[Pixels], top: int) -> Iterator[list[Guess]]:
        normalise = Normaliser(self.rules.normalisation, self.device)
        count = min(top, len(self.rules.classes))
        for start in range(0, len(pictures), _AT_A_TIME):
            images = normalise(np.stack(pictures[start : start + _AT_A_TIME]))
            probabilities = classify(self.model, images, flip=self.flip).softmax(1)
            best: Any = probabilities.topk(count, 1)
            for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                yield [
                    Guess(self.rules.classes[index], value)
                    for value, index in zip(values, indices, strict=True)
                ]
