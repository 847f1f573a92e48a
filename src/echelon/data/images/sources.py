"""A common interface to image sets: classes, splits, and images that are read one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from echelon.data.images.image_store import ImageSplit, Pixels


@dataclass(frozen=True)
class Unreadable:
    """A file that should have been an image."""

    name: str
    reason: str


@dataclass(frozen=True)
class Pictures:
    """The images of a split; `read` may be called from several threads at once."""

    label: str
    labels: NDArray[np.int64]
    read: Callable[[int], Pixels | Unreadable]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Opened:
    """A source that has been opened."""

    classes: tuple[str, ...]
    splits: dict[ImageSplit, Pictures]


class ImageSource(Protocol):
    """One kind of image set."""

    @property
    def origin(self) -> str:
        """Its origin, for the manifest."""
        ...

    @property
    def sha256(self) -> str:
        """Its identity; the same for the same images."""
        ...

    def open(self) -> Opened:
        """Fetch it if need be, and check it; DataError if that cannot be done."""
        ...


def hold_out(labels: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to keep and to hold out: the last ones of each class, in numbers as equal as possible."""
    classes = np.unique(labels)
    shares = [count // len(classes) + (number < count % len(classes)) for number in range(len(classes))]
    held = np.zeros(len(labels), bool)
    for label, share in zip(classes, shares, strict=True):
        members = np.flatnonzero(labels == label)
        held[members[len(members) - min(share, len(members)) :]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def from_array(label: str, images: Pixels, labels: NDArray[np.int64]) -> Pictures:
    """Images in memory: [N, H, W, 3]."""
    return Pictures(label, labels, lambda index: images[index])


def chosen(pictures: Pictures, indices: NDArray[np.int64], label: str) -> Pictures:
    """Some of the images, in the given order."""
    return Pictures(label, pictures.labels[indices], lambda index: pictures.read(int(indices[index])))
