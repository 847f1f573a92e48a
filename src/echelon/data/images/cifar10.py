"""CIFAR-10: 60,000 images of 32x32 pixels in ten classes, in its six binary files, whose hashes are known.

A record is a label byte and 3,072 bytes: the red, green and blue planes of the image.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from echelon.data.images.image_store import ImageSplit
from echelon.data.images.sources import Opened, Pictures, chosen, from_array, hold_out
from echelon.errors import DataError

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    TEST_FILE: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
ARCHIVE_FILE = "cifar-10-binary.tar.gz"
BROKEN_ARCHIVE = (tarfile.TarError, EOFError, zlib.error)
"""What reading a truncated or damaged archive raises, beside OSError."""
VALID_IMAGES = 5000
_PIXELS = 32
_RECORD_BYTES = 1 + 3 * _PIXELS * _PIXELS
_PUBLISHED = hashlib.sha256("".join(SHA256.values()).encode()).hexdigest()


class Cifar10:
    """The published data set; with `verify` off, any folder in its format, such as a part of it."""

    def __init__(
        self, path: Path | None, valid_images: int | None, fetch: Callable[[], Path], *, verify: bool = True
    ) -> None:
        self._path = path
        self._valid_images = VALID_IMAGES if valid_images is None else valid_images
        self._fetch = fetch
        self._verify = verify

    @property
    def origin(self) -> str:
        return str(self._path or "CIFAR-10")

    @property
    def sha256(self) -> str:
        if self._verify:
            return _PUBLISHED
        batches = self._read()
        return hashlib.sha256(b"".join(batches[name] for name in sorted(batches))).hexdigest()

    def open(self) -> Opened:
        batches = self._read()
        if self._verify:
            check_published(batches, self.origin)
        train = _pictures("CIFAR-10's training set", *(batches[n] for n in TRAIN_FILES if n in batches))
        kept, held = hold_out(train.labels, self._valid_images)
        splits: dict[ImageSplit, Pictures] = {"train": chosen(train, kept, "CIFAR-10's training set")}
        if len(held):
            splits["train"] = chosen(train, kept, "CIFAR-10's training set without the validation set")
            splits["valid"] = chosen(train, held, "the last of each class of CIFAR-10's training set")
        if TEST_FILE in batches:
            splits["test"] = _pictures("CIFAR-10's test set", batches[TEST_FILE])
        return Opened(CLASSES, splits)

    def _read(self) -> dict[str, bytes]:
        """The binary files of the folder or archive."""
        path = self._path if self._path is not None else self._fetch()
        try:
            batches = _read_archive(path) if path.is_file() else _read_folder(path)
        except (OSError, *BROKEN_ARCHIVE) as error:
            raise DataError(
                f"{path}: cannot be read as CIFAR-10: {error}; if it is half a download, fetch it again, or leave "
                "data.path out to have it fetched"
            ) from error
        if not any(name in batches for name in TRAIN_FILES):
            raise DataError(f"{path}: holds none of CIFAR-10's files ({', '.join(TRAIN_FILES)})")
        for name, batch in batches.items():
            if not batch or len(batch) % _RECORD_BYTES:
                raise DataError(f"{path}: {name} has {len(batch):,} bytes, no multiple of {_RECORD_BYTES:,}")
            if max(batch[::_RECORD_BYTES]) >= len(CLASSES):
                raise DataError(
                    f"{path}: {name} has a label above {len(CLASSES) - 1}, so it is not CIFAR-10's"
                )
        return batches


def find_cifar10(path: Path) -> Path | None:
    """What `data.path` may be: a file, a folder with the binary files, or the archive in a folder; None if it is
    none of these."""
    if path.is_file() or any((place / name).is_file() for place in _places(path) for name in SHA256):
        return path
    archive = path / ARCHIVE_FILE
    return archive if archive.is_file() else None


def check_published(batches: Mapping[str, bytes], origin: str) -> None:
    """DataError if a file is missing or is not, bit for bit, the one that was published."""
    for name, expected in SHA256.items():
        if name not in batches:
            raise DataError(f"{origin}: {name} is missing; CIFAR-10 has six files{_explain_sample(batches)}")
        if hashlib.sha256(batches[name]).hexdigest() != expected:
            raise DataError(
                f"{origin}: {name} is not the published one (its SHA-256 differs); fetch it again, or set "
                f"data.verify = false to use it as it is{_explain_sample(batches)}"
            )


def _explain_sample(batches: Mapping[str, bytes]) -> str:
    """How a part of the data set can be trained on, if these files are one."""
    pictures = sum(len(batches.get(name, b"")) for name in TRAIN_FILES) // _RECORD_BYTES
    if pictures > 2 * VALID_IMAGES:
        return ""
    settings = f"--set data.verify=false --set data.valid_images={pictures // 10}"
    return f". These are only {pictures:,} training images; to train on such a sample, add {settings}"


def _places(folder: Path) -> tuple[Path, ...]:
    return (folder, folder / "cifar-10-batches-bin")


def _read_folder(folder: Path) -> dict[str, bytes]:
    for place in _places(folder):
        found = {name: (place / name).read_bytes() for name in SHA256 if (place / name).is_file()}
        if found:
            return found
    return {}


def _read_archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            name = member.name.rpartition("/")[2]
            if member.isfile() and name in SHA256:
                file = archive.extractfile(member)
                assert file is not None
                found[name] = file.read()
        return found


def _pictures(label: str, *batches: bytes) -> Pictures:
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, _RECORD_BYTES)
    planes = records[:, 1:].reshape(-1, 3, _PIXELS, _PIXELS)
    return from_array(label, planes.transpose(0, 2, 3, 1), records[:, 0].astype(np.int64))
