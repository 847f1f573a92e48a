from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from echelon.train.tensorfile import write_tensors

ARRAYS = {
    "weights": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "ä name": np.float32(7.5) * np.ones(()),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "large": np.random.default_rng(0).standard_normal(3_000_000).astype(np.float32),
}


def test_the_safetensors_library_reads_what_was_written(tmp_path: Path) -> None:
    arrays = {name: np.asarray(array, dtype=np.float32) for name, array in ARRAYS.items()}
    written = write_tensors(tmp_path / "x.safetensors", arrays)
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
    content = (tmp_path / "x.safetensors").read_bytes()
    assert written.sha256 == hashlib.sha256(content).hexdigest()
    assert written.bytes == len(content)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_tensors(path, {"a": np.zeros(3, dtype=np.float32)})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.safetensors", b"old")]
