"""Prepares the images that a recipe names; prepared data are made once and found again by content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.data.corpora import resolve
from echelon.data.images.cifar10 import Cifar10
from echelon.data.images.digits import Digits
from echelon.data.images.download import fetch_cifar10
from echelon.data.images.folder import PictureFolder
from echelon.data.images.idx import IdxPictures
from echelon.data.images.image_store import (
    FORMAT_VERSION,
    ImageManifest,
    ImageSplit,
    Normalisation,
    Pixels,
    PreparedImages,
    SplitEntry,
    StoreWriter,
    measure_colours,
    open_images,
)
from echelon.data.images.pixels import DECODING_VERSION, middle, resize
from echelon.data.images.sources import ImageSource, Opened, Pictures, Unreadable
from echelon.data.prepare import ignore, make_once, prepared_folder
from echelon.data.prepared import MANIFEST, InputEntry
from echelon.data.progress import Progress, ReportProgress
from echelon.data.shards import FileEntry
from echelon.errors import DataError
from echelon.recipe.image_sections import ImageData
from echelon.recipe.sizes import model_pixels

_AT_A_TIME = 256
_MOST_NAMED = 20
"""How many unreadable files an error names."""


def prepare_images(
    data: ImageData, *, recipe_folder: Path, cache: Path, progress: ReportProgress = ignore
) -> PreparedImages:
    """Prepare the images of a recipe, or find them prepared.

    If this process is killed on the way, nothing is left that could be taken for prepared data.
    """
    source = find_source(data, recipe_folder, cache, progress)
    key = _key(data, source)

    def build(unfinished: Path) -> None:
        progress(Progress("fetch", 0, 1, "images"))
        _build(data, source, key, unfinished, progress)

    return open_images(make_once(cache, key, progress, build))


def find_images(data: ImageData, *, recipe_folder: Path, cache: Path) -> PreparedImages | None:
    """A recipe's prepared images; None if they are not prepared yet, or the source is missing."""
    try:
        folder = prepared_folder(cache, _key(data, find_source(data, recipe_folder, cache)))
    except DataError:
        return None
    return open_images(folder) if folder.exists() else None


def find_source(
    data: ImageData, recipe_folder: Path, cache: Path, progress: ReportProgress = ignore
) -> ImageSource:
    """The recipe's source of images; nothing is fetched yet."""
    path = None if data.path is None else resolve(data.path, recipe_folder)
    match data.source:
        case "digits":
            return Digits(data.valid_images)
        case "cifar10":
            return Cifar10(
                path,
                data.valid_images,
                lambda: fetch_cifar10(cache / "cifar10", progress),
                verify=data.verify,
            )
        case "idx":
            assert path is not None, "checked with the recipe"
            return IdxPictures(path, data.valid_images, data.pixels, data.class_names)
        case "folder":
            assert path is not None, "checked with the recipe"
            return PictureFolder(path, data.valid_images, stored_pixels(data))


def stored_pixels(data: ImageData) -> int:
    """Shorter side of a folder's images as they are stored."""
    return data.stored_pixels or round(model_pixels(data) * 8 / 7)


def _settings(data: ImageData) -> dict[str, Any]:
    """The settings that affect prepared images; augmentation belongs to training."""
    settings: dict[str, Any] = {"source": data.source, "valid_images": data.valid_images}
    settings["pixels"] = model_pixels(data)
    if data.source == "folder":  # the only one whose images are decoded
        settings |= {"stored_pixels": stored_pixels(data), "decoding": DECODING_VERSION}
    if data.class_names is not None:
        settings["class_names"] = data.class_names
    return settings


def _key(data: ImageData, source: ImageSource) -> str:
    canonical = json.dumps(["images", FORMAT_VERSION, _settings(data), source.sha256], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class _WrittenSplits:
    """What went into a folder."""

    splits: list[SplitEntry]
    files: list[FileEntry]
    normalisation: Normalisation
    unreadable: list[Unreadable]


def _build(data: ImageData, source: ImageSource, key: str, folder: Path, progress: ReportProgress) -> None:
    opened = source.open()
    for name, pictures in opened.splits.items():
        if not len(pictures):
            raise DataError(_explain_empty(source.origin, name, opened))
    written = _write_splits(data, opened, folder, progress)
    if written.unreadable:
        raise DataError(_name_unreadable(source.origin, written.unreadable))
    manifest = ImageManifest(
        format_version=FORMAT_VERSION,
        key=key,
        classes=opened.classes,
        pixels=model_pixels(data),
        normalisation=written.normalisation,
        splits=tuple(written.splits),
        inputs=(InputEntry("pictures", source.origin, source.sha256),),
        settings=_settings(data),
        files=tuple(written.files),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())


def _explain_empty(origin: str, name: str, opened: Opened) -> str:
    held = len(opened.splits.get("valid", ()))
    if name != "train" or not held:
        return f"{origin}: the {name} set is empty"
    return (
        f"{origin}: the train set is empty, as the validation set has taken all {held:,} images; "
        f"add --set data.valid_images={max(1, held // 10)}, for example"
    )


def _write_splits(data: ImageData, opened: Opened, folder: Path, progress: ReportProgress) -> _WrittenSplits:
    splits: list[SplitEntry] = []
    files: list[FileEntry] = []
    unreadable: list[Unreadable] = []
    normalisation = None
    for name, pictures in opened.splits.items():
        with StoreWriter(folder, name) as writer:
            for label, picture in _in_order(data, name, pictures, progress):
                if isinstance(picture, Unreadable):
                    unreadable.append(picture)
                else:
                    writer.add(picture, label)
            entry, written = writer.finish(pictures.label, len(opened.classes))
        if name == "train":
            normalisation = measure_colours(writer)
        splits.append(entry)
        files += written
    assert normalisation is not None, "every source has a training set"
    return _WrittenSplits(splits, files, normalisation, unreadable)


def _name_unreadable(origin: str, files: list[Unreadable]) -> str:
    if len(files) == 1:
        return f"{origin}: {files[0].name} cannot be read as an image: {files[0].reason}; mend or remove it"
    lines = [f"  {file.name}: {file.reason}" for file in files[:_MOST_NAMED]]
    if len(files) > _MOST_NAMED:
        lines.append(f"  and {len(files) - _MOST_NAMED:,} more")
    head = f"{origin}: {len(files):,} files cannot be read as images; mend or remove them:"
    return "\n".join([head, *lines])


def _in_order(
    data: ImageData, name: ImageSplit, pictures: Pictures, progress: ReportProgress
) -> Iterator[tuple[int, Pixels | Unreadable]]:
    """Labels and images as they are stored, read in parallel, a bounded number at a time."""

    def read(index: int) -> Pixels | Unreadable:
        picture = pictures.read(index)
        if data.source == "folder" or isinstance(picture, Unreadable):
            return picture
        return _exactly(picture, model_pixels(data))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(pictures), _AT_A_TIME):
            indices = range(start, min(start + _AT_A_TIME, len(pictures)))
            for index, picture in zip(indices, pool.map(read, indices), strict=True):
                yield int(pictures.labels[index]), picture
            progress(Progress(name, indices[-1] + 1, len(pictures), "images"))


def _exactly(picture: Pixels, pixels: int) -> Pixels:
    """An image of a set with one image size, resized as the recipe asks."""
    if picture.shape[0] == picture.shape[1]:
        return picture if picture.shape[0] == pixels else resize(picture, pixels)
    return middle(picture, pixels)
