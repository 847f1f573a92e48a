"""The 8x8 handwritten digits of scikit-learn: the embedded image set, with nothing to download."""

from __future__ import annotations

import hashlib

import numpy as np

from echelon.data.images.image_store import ImageSplit
from echelon.data.images.sources import Opened, Pictures, chosen, from_array, hold_out
from echelon.data.randomness import random_order
from echelon.errors import DataError
from echelon.extras import require_extra

SHA256 = "e1d88a0854e29e01d16358d2cd026aa8fc20dfc4cdb3fce004300857ea82aa70"
"""The digest of the labels and pixels, a byte each."""
TEST_IMAGES, VALID_IMAGES = 360, 180
_BRIGHTEST = 16
_ORDER = 1797
"""The key of the order in which the images are dealt to the splits; it never changes."""


class Digits:
    """1,797 images of ten classes. In one fixed random order, the last 36 of each class are the test set."""

    origin = "scikit-learn's digits"
    sha256 = SHA256

    def __init__(self, valid_images: int | None) -> None:
        self._valid_images = VALID_IMAGES if valid_images is None else valid_images

    def open(self) -> Opened:
        """Read them; needs scikit-learn, which the extra `images` installs."""
        found = require_extra("sklearn.datasets", "images").load_digits()
        grey = np.asarray(found.images).round().astype(np.uint8)
        labels = np.asarray(found.target).astype(np.int64)
        if hashlib.sha256(labels.astype(np.uint8).tobytes() + grey.tobytes()).hexdigest() != SHA256:
            raise DataError(
                "this scikit-learn's digits are not those that Echelon knows; install another version"
            )
        scaled = (grey.astype(np.uint16) * 255 // _BRIGHTEST).astype(np.uint8)
        everything = from_array("digits", np.repeat(scaled[..., None], 3, axis=3), labels)
        shuffled = chosen(everything, random_order(len(labels), _ORDER), "digits")
        rest, test = hold_out(shuffled.labels, TEST_IMAGES)
        remaining = chosen(shuffled, rest, "digits")
        kept, held = hold_out(remaining.labels, self._valid_images)
        splits: dict[ImageSplit, Pictures] = {"train": chosen(remaining, kept, "what is left")}
        if len(held):
            splits["valid"] = chosen(
                remaining, held, "the last of each class before those, in the same order"
            )
        splits["test"] = chosen(shuffled, test, "the last of each class, in a fixed random order")
        return Opened(tuple("0123456789"), splits)
