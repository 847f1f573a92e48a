"""Small picture sets that tests write to disk."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from echelon.data.images.cifar10 import TEST_FILE, TRAIN_FILES


def picture(seed: int, height: int = 20, width: int = 30) -> Image.Image:
    """Coloured noise."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def write_folder(folder: Path, per_class: int = 4) -> Path:
    """Two classes in ImageNet's layout, with a grey, a CMYK, a palette and a transparent picture among them."""
    kinds = {0: ("L", "jpg"), 1: ("CMYK", "jpg"), 2: ("P", "png"), 3: ("RGBA", "png")}
    for split, count in (("train", per_class), ("val", 2)):
        for label, name in enumerate(("cat", "dog")):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                mode, ending = kinds[number % 4]
                picture(100 * label + number).convert(mode).save(place / f"{number}.{ending}")
    return folder


def as_tar(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "pictures")
    return path


def write_cifar(folder: Path, per_file: int = 20) -> Path:
    """Files in CIFAR-10's format, which are not CIFAR-10's."""
    folder.mkdir(parents=True)
    for number, name in enumerate((*TRAIN_FILES, TEST_FILE)):
        dice = np.random.default_rng(number)
        labels = (np.arange(per_file) % 10).astype(np.uint8)[:, None]
        pixels = dice.integers(0, 256, (per_file, 3072), np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, pixels], 1).tobytes())
    return folder


def as_bytes(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def jpeg_of_many_segments(size: int) -> bytes:
    """A small picture whose EXIF is in thousands of segments, which Pillow joins one by one."""
    segment = b"\xff\xe1" + struct.pack(">H", 24) + b"Exif\0\0" + b"A" * 16
    plain = as_bytes(picture(1), "JPEG")
    return plain[:2] + segment * (size // len(segment)) + plain[2:]


def png_of_many_chunks(size: int) -> bytes:
    """A small picture with a million chunks that say nothing, which Pillow looks at one by one."""
    plain, chunk = as_bytes(picture(1)), bytes(4) + b"noPe"
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    return plain[:33] + chunk * (size // len(chunk)) + plain[33:]


def tiff_of_shared_values(size: int) -> bytes:
    """Tags that all have the same bytes of the file as their value, which Pillow copies for each."""
    tags = 60_000
    shared = 8 + 2 + 12 * tags + 4
    entries = [struct.pack("<HHII", tag, 7, size, shared) for tag in range(1000, 1000 + tags)]
    return b"II*\0" + struct.pack("<IH", 8, tags) + b"".join(entries) + bytes(4 + size)
