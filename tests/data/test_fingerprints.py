from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.data import fingerprints
from echelon.data.fingerprints import HashMemory
from echelon.errors import DataError


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files whose content was read."""
    read: list[Path] = []
    real = fingerprints.sha256_of_file
    monkeypatch.setattr(fingerprints, "SETTLED_NS", -1)

    def counting(path: Path, on_bytes: Callable[[int], None]) -> str:
        read.append(path)
        return real(path, on_bytes)

    monkeypatch.setattr(fingerprints, "sha256_of_file", counting)
    return read


def sha256_now(path: Path, memory: Path) -> str:
    hashes = HashMemory(memory)
    sha256 = hashes.sha256(path)
    hashes.save()
    return sha256


def test_file_is_read_once_and_again_when_it_changed(tmp_path: Path, counted: list[Path]) -> None:
    path, memory = tmp_path / "file", tmp_path / "cache" / "hashes.json"
    path.write_bytes(b"one")
    for _ in range(3):
        assert sha256_now(path, memory) == hashlib.sha256(b"one").hexdigest()
    assert len(counted) == 1
    stamps = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # same size, same mtime: ctime tells
    assert sha256_now(path, memory) == hashlib.sha256(b"two").hexdigest()
    assert len(counted) == 2


def test_file_just_written_is_not_remembered(
    tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "SETTLED_NS", 10**12)
    path, memory = tmp_path / "file", tmp_path / "hashes.json"
    path.write_bytes(b"one")
    assert sha256_now(path, memory) == sha256_now(path, memory)
    assert len(counted) == 2


@pytest.mark.parametrize("content", ["", "[]", "{broken", '{"x": 1}'])
def test_damaged_memory_is_forgotten(content: str, tmp_path: Path, counted: list[Path]) -> None:
    path, memory = tmp_path / "file", tmp_path / "hashes.json"
    path.write_bytes(b"one")
    memory.write_text(content.replace("x", str(path)))
    assert sha256_now(path, memory) == sha256_now(path, memory)
    assert len(counted) == 1


def test_files_that_are_gone_are_forgotten(tmp_path: Path, counted: list[Path]) -> None:
    path, memory = tmp_path / "file", tmp_path / "hashes.json"
    path.write_bytes(b"one")
    sha256_now(path, memory)
    assert str(path) in memory.read_text()
    path.rename(tmp_path / "moved")
    sha256_now(tmp_path / "moved", memory)
    assert str(path) not in memory.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hashes.json", "moved"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(DataError, match="is not a file"):
            HashMemory(tmp_path / "hashes.json").sha256(path)
    with pytest.raises(DataError, match="gone cannot be read: No such file"):
        HashMemory(tmp_path / "hashes.json").sha256(tmp_path / "gone")
