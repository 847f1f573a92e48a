"""MNIST and its family (Fashion-MNIST, KMNIST, EMNIST): idx files of grey images and of labels, plain or compressed.

An idx file is two zero bytes, the type of its numbers (8: unsigned byte), how many dimensions it has, each dimension as
four bytes, the highest first, and the numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echelon.data.images.image_store import ImageSplit, Pixels
from echelon.data.images.sources import Opened, Pictures, chosen, from_array, hold_out
from echelon.data.streams import BlockReader, FileLocation
from echelon.errors import DataError
from echelon.recipe.sizes import NATIVE_PIXELS

VALID_IMAGES = 5000
"""Held out unless the recipe says otherwise; a tenth of a training set of fewer than ten times that."""
_UNSIGNED_BYTE = 8
_LARGEST_BYTES = 1 << 34
_SPLITS: dict[ImageSplit, tuple[str, ...]] = {"train": ("train",), "test": ("t10k", "test")}


@dataclass(frozen=True)
class IdxPictures:
    """A folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and perhaps the same of t10k."""

    path: Path
    valid_images: int | None
    pixels: int | None
    """What the recipe asks for; None: the images must be of the usual size."""
    names: Sequence[str] | None
    """Of the classes, in the order of their labels; None: they are called by their labels."""

    @property
    def origin(self) -> str:
        return str(self.path)

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for split, files in sorted(self._files.items()):
            for file in files:
                digest.update(f"{split} {hashlib.sha256(self._content(file)).hexdigest()}\n".encode())
        return digest.hexdigest()

    @cached_property
    def _files(self) -> dict[ImageSplit, tuple[Path, Path]]:
        """The files of images and of labels, by split."""
        try:
            here = sorted(file for file in self.path.iterdir() if "idx" in file.name and file.is_file())
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be read: {error.strerror}; name the folder of the files"
            ) from error
        found: dict[ImageSplit, tuple[Path, Path]] = {}
        for split, words in _SPLITS.items():
            of_split = [file for file in here if any(word in file.name for word in words)]
            images, labels = (self._one(of_split, kind) for kind in ("images", "labels"))
            if images is not None and labels is not None:
                found[split] = images, labels
        if "train" not in found:
            raise DataError(
                f"{self.path}: holds no train-images-idx3-ubyte and train-labels-idx1-ubyte (or those and .gz)"
            )
        return found

    def _one(self, files: list[Path], kind: str) -> Path | None:
        of_kind = [file for file in files if kind in file.name]
        plain = {file.name.removesuffix(".gz"): file for file in of_kind}  # the same file may be there twice
        if len(plain) > 1:
            raise DataError(f"{self.path}: {' and '.join(sorted(plain))} are two sets; keep one in a folder")
        return next(iter(plain.values()), None)

    def open(self) -> Opened:
        arrays = {split: self._read(*files) for split, files in self._files.items()}
        classes = self._classes(max(int(labels.max()) for _, labels in arrays.values()) + 1)
        whole = {split: from_array(f"the {split} files", *array) for split, array in arrays.items()}
        train = whole["train"]
        count = min(VALID_IMAGES, len(train) // 10) if self.valid_images is None else self.valid_images
        kept, held = hold_out(train.labels, count)
        splits: dict[ImageSplit, Pictures] = {"train": chosen(train, kept, train.label)}
        if len(held):
            splits["train"] = chosen(train, kept, "the train files without the validation set")
            splits["valid"] = chosen(train, held, "the last of each class of the train files")
        return Opened(classes, splits | ({"test": whole["test"]} if "test" in whole else {}))

    def _classes(self, count: int) -> tuple[str, ...]:
        if self.names is None:
            return tuple(map(str, range(count)))
        if len(self.names) != count:
            raise DataError(
                f"{self.path}: has {count} classes, and data.class_names names {len(self.names)}; name each of them"
            )
        return tuple(self.names)

    def _read(self, images: Path, labels: Path) -> tuple[Pixels, NDArray[np.int64]]:
        """Colours [N, H, W, 3] and labels [N]."""
        grey, numbers = self._array(images, 3), self._array(labels, 1)
        if len(grey) != len(numbers):
            raise DataError(
                f"{images} has {len(grey):,} images, but {labels.name} {len(numbers):,} labels; fetch them again"
            )
        usual = NATIVE_PIXELS["idx"]
        if self.pixels is None and grey.shape[1:] != (usual, usual):
            height, width = grey.shape[1:]
            raise DataError(
                f"{images}: images are {height}x{width} and not {usual}x{usual}, so set data.pixels, which is what "
                "the model sees"
            )
        return np.repeat(grey[..., None], 3, axis=3), numbers.astype(np.int64)

    def _array(self, file: Path, dimensions: int) -> NDArray[np.uint8]:
        """The numbers of an idx file with `dimensions` dimensions."""
        content = self._content(file)
        head = 4 + 4 * dimensions
        if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]) or len(content) < head:
            raise DataError(f"{file}: is not an idx file of {dimensions} dimensions of bytes")
        sizes = struct.unpack(f">{dimensions}I", content[4:head])
        if len(content) != head + int(np.prod(sizes, dtype=object)) or not sizes[0]:
            shape = " x ".join(map(str, sizes))
            raise DataError(
                f"{file}: has {len(content) - head:,} bytes for {shape}; it is cut short or damaged"
            )
        return np.frombuffer(content, np.uint8, offset=head).reshape(sizes)

    def _content(self, file: Path) -> bytes:
        content = bytearray()
        for block in BlockReader(FileLocation(file)):
            content += block
            if len(content) > _LARGEST_BYTES:
                raise DataError(
                    f"{file}: unpacks to more than {_LARGEST_BYTES >> 30} GiB; is it an idx file?"
                )
        return bytes(content)
