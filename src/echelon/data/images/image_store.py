"""Prepared pictures: memory-mapped shards of raw pixels, an index, and a manifest.

NAME.labels         uint16, one a picture
NAME.sizes          uint16, height and width of each picture
NAME.places         int64, shard and first byte of each picture
NAME-00000.pixels   uint8, pictures one after another: height x width x 3 (red, green, blue)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from echelon.data.prepared import MANIFEST, InputEntry, check_file, damaged, read_manifest
from echelon.data.shards import FileEntry, HashingFile

FORMAT_VERSION = 1
SHARD_BYTES = 1 << 32
"""A mapped shard keeps a file descriptor, and many systems allow 1,024: ImageNet has 80 shards of this size."""
LABEL_TYPE, SIZE_TYPE, PLACE_TYPE = np.dtype("<u2"), np.dtype("<u2"), np.dtype("<i8")
ImageSplit = Literal["train", "valid", "test"]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class SplitEntry:
    """The contents of one split."""

    name: ImageSplit
    label: str
    """Where its pictures come from, in words."""
    images: int
    per_class: tuple[int, ...]
    shards: int


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of the training pictures' colours, on a scale from 0 to 255."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


@dataclass(frozen=True)
class ImageManifest:
    """All metadata of prepared pictures."""

    format_version: int
    key: str
    classes: tuple[str, ...]
    pixels: int
    """Height and width of what the model sees."""
    normalisation: Normalisation
    splits: tuple[SplitEntry, ...]
    inputs: tuple[InputEntry, ...]
    settings: dict[str, Any]
    """What the key was made from, beside the inputs."""
    files: tuple[FileEntry, ...]

    def to_json(self) -> bytes:
        return TypeAdapter(ImageManifest).dump_json(self, indent=1) + b"\n"


@dataclass(frozen=True)
class ImageStore:
    """The pictures of a split, mapped from disk: opening them costs no memory."""

    labels: NDArray[np.uint16]
    sizes: NDArray[np.uint16]
    """[N, 2] height and width."""
    places: NDArray[np.int64]
    """[N, 2] shard and first byte."""
    shards: list[Pixels] = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all pictures have one size and are in one shard, so that a batch can be gathered at once."""
        return len(self.shards) == 1 and bool((self.sizes == self.sizes[0]).all())

    def picture(self, index: int) -> Pixels:
        """[H, W, 3], a view of the mapped file."""
        height, width = map(int, self.sizes[index])
        shard, start = map(int, self.places[index])
        return self.shards[shard][start : start + 3 * height * width].reshape(height, width, 3)

    def gather(self, indices: NDArray[np.int64]) -> Pixels:
        """[N, H, W, 3] of pictures that are all of one size."""
        assert self.is_uniform
        height, width = map(int, self.sizes[0])
        gathered: Pixels = self.shards[0].reshape(-1, height, width, 3)[indices]
        return gathered


@dataclass(frozen=True)
class PreparedImages:
    """Prepared pictures, open."""

    folder: Path
    manifest: ImageManifest
    splits: dict[str, ImageStore]

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def train(self) -> ImageStore:
        return self.splits["train"]

    def what_classifying_needs(self) -> dict[str, Any]:
        """What a model needs besides its weights: class names, picture size, normalisation."""
        manifest = self.manifest
        return {
            "classes": list(manifest.classes),
            "pixels": manifest.pixels,
            "normalisation": asdict(manifest.normalisation),
            "shorter": manifest.settings.get("stored_pixels", manifest.pixels),
        }

    @property
    def num_classes(self) -> int:
        return len(self.manifest.classes)


class StoreWriter:
    """Writes a split picture after picture, one file open at a time; a context manager that closes the last."""

    def __init__(self, folder: Path, name: ImageSplit, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._name: ImageSplit = name
        self._shard_bytes = shard_bytes
        self._files: list[HashingFile] = []
        self._shards = 0
        self._filled = 0
        self._labels: list[int] = []
        self._sizes: list[tuple[int, int]] = []
        self._places: list[tuple[int, int]] = []
        self.sums = np.zeros((2, 3))
        """Of the colours and their squares, and ..."""
        self.num_pixels = 0

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close_last()

    def add(self, picture: Pixels, label: int) -> None:
        """Append one picture [H, W, 3]."""
        if not self._shards or self._filled + picture.nbytes > self._shard_bytes:
            self._open(f"{self._name}-{self._shards:05d}.pixels")
            self._shards, self._filled = self._shards + 1, 0
        self._labels.append(label)
        self._sizes.append((picture.shape[0], picture.shape[1]))
        self._places.append((self._shards - 1, self._filled))
        self._files[-1].write(np.ascontiguousarray(picture).data)
        self._filled += picture.nbytes
        colours = picture.reshape(-1, 3).astype(np.float64)
        self.sums += [colours.sum(0), (colours * colours).sum(0)]
        self.num_pixels += len(colours)

    def finish(self, label: str, classes: int) -> tuple[SplitEntry, list[FileEntry]]:
        """Write the index; what the split holds, and its files."""
        for kind, values, dtype in (
            ("labels", self._labels, LABEL_TYPE),
            ("sizes", self._sizes, SIZE_TYPE),
            ("places", self._places, PLACE_TYPE),
        ):
            self._open(f"{self._name}.{kind}").write(np.array(values, dtype).data)
        self._close_last()
        counts = np.bincount(self._labels, minlength=classes).tolist()
        entry = SplitEntry(self._name, label, len(self._labels), tuple(counts), self._shards)
        return entry, [file.entry for file in self._files]

    def _open(self, name: str) -> HashingFile:
        self._close_last()
        self._files.append(HashingFile(self._folder / name))
        return self._files[-1]

    def _close_last(self) -> None:
        if self._files:
            self._files[-1].close()


def measure_colours(writer: StoreWriter) -> Normalisation:
    """Mean and deviation of what was written."""
    mean, squares = writer.sums / max(writer.num_pixels, 1)
    deviation = np.maximum(np.sqrt(np.maximum(squares - mean * mean, 0.0)), 1.0)
    return Normalisation(_three(mean), _three(deviation))


def _three(values: Iterable[float]) -> tuple[float, float, float]:
    red, green, blue = (round(float(value), 4) for value in values)
    return red, green, blue


def open_images(folder: Path, *, verify: bool = False) -> PreparedImages:
    """Open prepared pictures; DataError naming the file that is missing or damaged.

    Sizes are always checked, contents (SHA-256) with `verify`.
    """
    manifest = read_manifest(folder, ImageManifest, FORMAT_VERSION)
    for entry in manifest.files:
        check_file(folder, entry, verify=verify)
    splits: dict[str, ImageStore] = {
        split.name: _open_store(folder, split, manifest) for split in manifest.splits
    }
    if "train" not in splits or not len(splits["train"]):
        raise damaged(folder, MANIFEST, "names no training images")
    return PreparedImages(folder, manifest, splits)


def _open_store(folder: Path, split: SplitEntry, manifest: ImageManifest) -> ImageStore:
    bytes_of = {entry.name: entry.bytes for entry in manifest.files}

    def open_array(name: str, dtype: np.dtype[Any], *shape: int) -> NDArray[Any]:
        size = int(np.prod(shape)) * dtype.itemsize
        if bytes_of.get(name) != size:
            raise damaged(folder, MANIFEST, f"and {name} disagree on the number of images")
        if not size:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(folder / name, dtype, "r", shape=shape))

    names = [f"{split.name}-{number:05d}.pixels" for number in range(split.shards)]
    store = ImageStore(
        open_array(f"{split.name}.labels", LABEL_TYPE, split.images),
        open_array(f"{split.name}.sizes", SIZE_TYPE, split.images, 2),
        open_array(f"{split.name}.places", PLACE_TYPE, split.images, 2),
        [open_array(name, np.dtype(np.uint8), bytes_of.get(name, -1)) for name in names],
    )
    ends = store.places[:, 1] + 3 * store.sizes[:, 0].astype(np.int64) * store.sizes[:, 1]
    lengths = np.array([len(shard) for shard in store.shards], np.int64)
    is_inside = (store.places >= 0).all() and (store.places[:, 0] < len(lengths)).all()
    if not is_inside or (ends > lengths[store.places[:, 0]]).any():
        raise damaged(folder, f"{split.name}.places", "point outside the shards")
    if len(store) and int(store.labels.max()) >= len(manifest.classes):
        raise damaged(folder, f"{split.name}.labels", "name classes that do not exist")
    return store
