"""Pictures in class folders, ImageNet's layout: train/CLASS/*.jpg, val/CLASS/*.jpg and perhaps test/CLASS/*.jpg."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from echelon.data.images.image_store import ImageSplit, Pixels
from echelon.data.images.pixels import decode
from echelon.data.images.sources import Opened, Pictures, Unreadable, chosen, hold_out
from echelon.errors import DataError
from echelon.runfolder import read_file

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
SPLITS: dict[str, ImageSplit] = {
    "train": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "test": "test",
}
MOST_CLASSES = 1 << 16
_MOST_BYTES = 1 << 28
"""Of an image's file."""


@dataclass(frozen=True)
class _File:
    """An image file: its split, its class and its identity."""

    split: ImageSplit
    class_name: str
    name: str
    stamp: tuple[int, int]
    """Size, and time of the last change in nanoseconds."""


class PictureFolder:
    """A folder, or an uncompressed .tar file of one. Pictures are brought to `stored_pixels` at their shorter side."""

    def __init__(self, path: Path, valid_images: int | None, stored_pixels: int) -> None:
        self._path = path
        self._valid_images = valid_images
        self._stored_pixels = stored_pixels

    @property
    def origin(self) -> str:
        return str(self._path)

    @cached_property
    def sha256(self) -> str:
        """A hash of the files' names, sizes and times: hashing all of ImageNet would take as long as using it."""
        digest = hashlib.sha256()
        for file in self._files:
            line = f"{file.split}/{file.class_name}/{file.name}:{file.stamp}\n"
            digest.update(line.encode(errors="surrogateescape"))  # a name may be any bytes
        return digest.hexdigest()

    @cached_property
    def _files(self) -> list[_File]:
        """Every image, in the order of split, class and name."""
        try:
            listed = list(_list_archive(self._path) if self._path.is_file() else _list_folder(self._path))
        except (OSError, tarfile.TarError) as error:
            raise DataError(f"{self._path}: cannot be read: {error}") from error
        for path, _ in listed:
            if _lacks_class(path):
                raise DataError(
                    f"{self._path}: {path} lies in no class folder; the layout is train/CLASS/*.jpg and "
                    "val/CLASS/*.jpg, so move every image into the folder of its class"
                )
        files = [file for path, stamp in listed if (file := _placed(path, stamp)) is not None]
        if not any(file.split == "train" for file in files):
            raise DataError(
                f"{self._path}: has no images in train/CLASS/; the layout is train/CLASS/*.jpg and val/CLASS/*.jpg"
            )
        return sorted(files, key=lambda file: (file.split, file.class_name, file.name))

    def open(self) -> Opened:
        classes = tuple(sorted({file.class_name for file in self._files if file.split == "train"}))
        strangers = sorted({file.class_name for file in self._files} - set(classes))
        if strangers:
            raise DataError(f"{self._path}: {strangers[0]} has images to score, but none in train/")
        if len(classes) > MOST_CLASSES:
            raise DataError(f"{self._path}: {len(classes):,} classes are more than {MOST_CLASSES:,}")
        for name in classes:
            if not _is_text(name):
                raise DataError(
                    f"{self._path}: the name of the class folder {os.fsencode(name)!r} is not UTF-8; rename it"
                )
        number = {name: index for index, name in enumerate(classes)}
        read_bytes = _reader(self._path)
        splits: dict[ImageSplit, Pictures] = {}
        for split in ("train", "valid", "test"):
            files = [file for file in self._files if file.split == split]
            if files:
                labels = np.array([number[file.class_name] for file in files], np.int64)
                splits[split] = Pictures(f"{split} folders", labels, self._read(files, read_bytes))
        return Opened(classes, self._with_held_out(splits))

    def _with_held_out(self, splits: dict[ImageSplit, Pictures]) -> dict[ImageSplit, Pictures]:
        """With a number of validation images given, they come from the training set, and val/ is the test set."""
        if self._valid_images is None:
            if "valid" not in splits:
                raise DataError(f"{self._path}: has no val/ folder; set data.valid_images to hold images out")
            return splits
        train = splits["train"]
        kept, held = hold_out(train.labels, self._valid_images)
        result: dict[ImageSplit, Pictures] = {
            "train": chosen(train, kept, "train/ without the validation set")
        }
        if len(held):
            result["valid"] = chosen(train, held, "the last of each class of train/")
        scored = splits.get("test") or splits.get("valid")
        return result | ({"test": scored} if scored else {})

    def _read(
        self, files: list[_File], read_bytes: Callable[[str], bytes]
    ) -> Callable[[int], Pixels | Unreadable]:
        def read(index: int) -> Pixels | Unreadable:
            name = files[index].name
            try:
                return decode(read_bytes(name), self._stored_pixels)
            except (OSError, ValueError, tarfile.TarError) as error:
                return Unreadable(name, str(error))

        return read


def find_labelled(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Every image of a folder CLASS/*.jpg with the number of its class, in order; DataError if one has none."""
    try:
        names = sorted(name for name, _ in _list_folder(folder) if _is_picture(name))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    number = {name: index for index, name in enumerate(classes)}
    found = {name: PurePosixPath(name).parts[0] for name in names}
    strangers = sorted({place for place in found.values() if place not in number})
    if strangers:
        named = ", ".join(strangers[:5]) + (f" and {len(strangers) - 5} more" if len(strangers) > 5 else "")
        raise DataError(
            f"{folder}: the model knows no class {named}; the layout is CLASS/*.jpg, with the classes it was trained on"
        )
    if not found:
        raise DataError(f"{folder}: holds no images; the layout is CLASS/*.jpg")
    return [(folder / name, number[place]) for name, place in found.items()]


def _placed(path: str, stamp: tuple[int, int]) -> _File | None:
    """The image that a path names; None if it is something else. One folder above the splits may stay."""
    parts = PurePosixPath(path).parts
    if not _is_picture(path):
        return None
    for depth in (0, 1):
        if len(parts) >= depth + 3 and parts[depth] in SPLITS:
            return _File(SPLITS[parts[depth]], parts[depth + 1], path, stamp)
    return None


def _lacks_class(path: str) -> bool:
    """Whether an image is directly in train/ or val/; test/ may have some without known classes."""
    parts = PurePosixPath(path).parts
    is_right_in_it = len(parts) == 2 or (len(parts) == 3 and parts[0] not in SPLITS)
    return is_right_in_it and _is_picture(path) and SPLITS.get(parts[-2], "test") != "test"


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8, so that it can be recorded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_picture(path: str) -> bool:
    place = PurePosixPath(path)
    return place.suffix.lower() in ENDINGS and not place.name.startswith(".")


def _list_folder(
    folder: Path, within: str = "", above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every file below a folder, following links to folders except those that lead back up."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _list_folder(folder / entry.name, f"{within}{entry.name}/", (*above, here))
        elif entry.is_file():
            status = entry.stat()
            yield f"{within}{entry.name}", (status.st_size, status.st_mtime_ns)


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(
        path, "r:"
    ) as archive:  # not compressed: pictures are compressed already, and read out of order
        yield from (member for member in archive if member.isfile())


def _list_archive(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for member in _members(path):
        yield PurePosixPath(member.name).as_posix(), (member.size, int(member.mtime * 1e9))


def _reader(path: Path) -> Callable[[str], bytes]:
    if path.is_dir():
        return lambda name: read_file(path / name, _MOST_BYTES)
    places = {PurePosixPath(m.name).as_posix(): (m.offset_data, m.size) for m in _members(path)}

    def read(name: str) -> bytes:
        start, size = places[name]
        if size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        with path.open("rb") as archive:
            archive.seek(start)
            return archive.read(size)

    return read
