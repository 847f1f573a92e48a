"""The images of each slot and their augmentation: pure functions of the recipe, the step and the slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from echelon.data.images.image_store import ImageStore, Pixels
from echelon.data.images.pixels import middle, resize
from echelon.data.randomness import below, bit_generator, random_order, symmetric_beta, uniforms
from echelon.recipe.image_sections import Augment

ORDER_OF_EPOCH, VARIATION_OF_SLOT, MIRRORED_FIRST = range(16, 19)
"""What random bits are drawn for."""
EPOCHS_KEPT = 2
_CROP_TRIES = 10
_WIDEST = 4 / 3


@dataclass(frozen=True)
class ImageSlot:
    """One micro-batch of a step."""

    step: int
    number: int
    images: NDArray[np.int64]
    """[N] indices into the training set."""
    epochs: NDArray[np.int64]
    """[N] how often each of them was seen before."""


@dataclass(frozen=True)
class Batch:
    """Images as the model sees them, before normalisation."""

    images: Pixels
    """[N, P, P, 3]"""
    labels: NDArray[np.int64]
    mixed_share: float | None = None
    """With mixup: the share of an image in its blend with its opposite in the batch, counted from the other end."""


class ImagePlan:
    """The slots of every step: an endless stream of epochs, each shuffled differently, cut into equal slots."""

    def __init__(self, num_images: int, *, batch_images: int, slots: int, seed: int) -> None:
        self._num_images = num_images
        self._slots = slots
        self._slot_images = batch_images // slots
        self._seed = seed
        self.steps_per_epoch = num_images / batch_images
        self._order = lru_cache(EPOCHS_KEPT)(
            lambda epoch: random_order(num_images, seed, ORDER_OF_EPOCH, epoch)
        )

    def slot(self, step: int, number: int) -> ImageSlot:
        """Slot `number` of a step; steps are counted from 1."""
        first = ((step - 1) * self._slots + number) * self._slot_images
        epochs, places = np.divmod(np.arange(first, first + self._slot_images), self._num_images)
        images = np.empty(self._slot_images, np.int64)
        for epoch in np.unique(epochs):
            images[epochs == epoch] = self._order(int(epoch))[places[epochs == epoch]]
        return ImageSlot(step, number, images, epochs)


def load_slot(store: ImageStore, slot: ImageSlot, augment: Augment, pixels: int, seed: int) -> Batch:
    """A slot's images, augmented as the recipe says."""
    bits = bit_generator(seed, VARIATION_OF_SLOT, slot.step, slot.number)
    count = len(slot.images)
    if augment.min_area is not None:
        images = _resized_crops(store, slot.images, pixels, augment.min_area, bits)
    else:
        images = take_middle(store, slot.images, pixels)
    if augment.pad:
        images = crop_padded(images, augment.pad, augment.border == "mirror", bits)
    if augment.flip == "random":
        images = mirror(images, uniforms(bits, count) < 0.5)
    elif augment.flip == "alternate":
        images = mirror(images, _is_mirrored(slot, seed, len(store)))
    if augment.cutout:
        images = cut_out(images, augment.cutout, bits)
    share = symmetric_beta(bits, augment.mixup) if augment.mixup else None
    return Batch(images, store.labels[slot.images].astype(np.int64), share)


def take_middle(store: ImageStore, indices: NDArray[np.int64], pixels: int) -> Pixels:
    """[N, P, P, 3]: the images for scoring."""
    if store.is_uniform and tuple(store.sizes[0]) == (pixels, pixels):
        return store.gather(indices)
    return np.stack([middle(store.picture(int(index)), pixels) for index in indices])


def crop_padded(images: Pixels, pad: int, mirrored: bool, bits: np.random.PCG64) -> Pixels:
    """Pad images and crop each back to its size at a random offset."""
    count, height, width, _ = images.shape
    around = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    padded = np.pad(images, around, mode="reflect") if mirrored else np.pad(images, around)
    tops, lefts = below(bits, 2 * pad + 1, count), below(bits, 2 * pad + 1, count)
    # Rows of bytes, so that what is copied lies together: an image's row is 3 * width bytes in a longer one.
    rows = padded.reshape(count, height + 2 * pad, -1)
    windows = np.lib.stride_tricks.sliding_window_view(rows, 3 * width, axis=2)
    row_numbers = tops[:, None] + np.arange(height)
    cropped: Pixels = windows[np.arange(count)[:, None], row_numbers, 3 * lefts[:, None]]
    return cropped.reshape(images.shape)


def mirror(images: Pixels, which: NDArray[np.bool_]) -> Pixels:
    """Flip the chosen images horizontally."""
    images = images.copy() if not images.flags.writeable else images
    images[which] = images[which][:, :, ::-1]
    return images


def cut_out(images: Pixels, side: int, bits: np.random.PCG64) -> Pixels:
    """Cutout: fill a square of each image, centred anywhere in it, with the mean colour of them all."""
    count, height, width, _ = images.shape
    tops = below(bits, height, count)[:, None] - side // 2
    lefts = below(bits, width, count)[:, None] - side // 2
    rows, columns = np.arange(height), np.arange(width)
    is_row = (rows >= tops) & (rows < tops + side)
    is_column = (columns >= lefts) & (columns < lefts + side)
    images = images.copy() if not images.flags.writeable else images
    images[is_row[:, :, None] & is_column[:, None, :]] = images.mean((0, 1, 2)).round().astype(np.uint8)
    return images


def _is_mirrored(slot: ImageSlot, seed: int, num_images: int) -> NDArray[np.bool_]:
    """Flip half of the images in even epochs, the other half in odd ones."""
    first = _mirrored_first(seed, num_images)
    is_mirrored: NDArray[np.bool_] = (first[slot.images] + slot.epochs) % 2 == 1
    return is_mirrored


@lru_cache(1)
def _mirrored_first(seed: int, num_images: int) -> NDArray[np.int64]:
    return below(bit_generator(seed, MIRRORED_FIRST), 2, num_images)


def _resized_crops(
    store: ImageStore, indices: NDArray[np.int64], pixels: int, min_area: float, bits: np.random.PCG64
) -> Pixels:
    boxes = crop_boxes(store.sizes[indices].astype(np.float64), min_area, bits)
    pictures = (store.picture(int(index)) for index in indices)
    return np.stack(
        [resize(picture, pixels, tuple(box)) for picture, box in zip(pictures, boxes.tolist(), strict=True)]
    )


def crop_boxes(sizes: NDArray[np.float64], min_area: float, bits: np.random.PCG64) -> NDArray[np.float64]:
    """[N, 4] left, top, right, bottom of random crops of images of the given heights and widths.

    The first of a few tries that fits is taken; if none does, the largest square in the middle.
    """
    count = len(sizes)
    heights, widths = sizes.T
    shares = min_area + (1 - min_area) * uniforms(bits, _CROP_TRIES * count).reshape(_CROP_TRIES, count)
    ratios = np.exp(math.log(_WIDEST) * (2 * uniforms(bits, _CROP_TRIES * count) - 1)).reshape(shares.shape)
    crop_widths = np.round(np.sqrt(shares * heights * widths * ratios))
    crop_heights = np.round(np.sqrt(shares * heights * widths / ratios))
    fits = (crop_widths <= widths) & (crop_heights <= heights) & (crop_widths > 0) & (crop_heights > 0)
    first, every = fits.argmax(0), np.arange(count)
    has_fit, shorter = fits.any(0), np.minimum(heights, widths)
    width = np.where(has_fit, crop_widths[first, every], shorter)
    height = np.where(has_fit, crop_heights[first, every], shorter)
    places = np.where(has_fit, uniforms(bits, 2 * count).reshape(2, count), 0.5)
    left, top = np.floor(places[0] * (widths - width + 1)), np.floor(places[1] * (heights - height + 1))
    left, top = np.minimum(left, widths - width), np.minimum(top, heights - height)
    return np.stack([left, top, left + width, top + height], axis=1)
