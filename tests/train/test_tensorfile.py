from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash
from tests.checkpoints import image_of

from echelon.train import tensorfile
from echelon.train.tensorfile import TensorImage

TENSORS = {
    "weights": torch.arange(24.0).view(2, 3, 4),
    "ä name": torch.tensor(7.5),
    "empty": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "counts": torch.arange(5),
    "large": torch.randn(5_000_001, generator=torch.Generator().manual_seed(0)),
}


def _write_and_compare(path: Path) -> None:
    written = image_of(TENSORS).write(path)
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded[name], tensor), name
    content = path.read_bytes()
    assert written.checksum == xxhash.xxh3_128(content).hexdigest()
    assert written.bytes == len(content)


def test_the_safetensors_library_reads_what_was_written(tmp_path: Path) -> None:
    _write_and_compare(tmp_path / "x.safetensors")


def test_a_second_write_holds_what_the_image_holds_by_then(tmp_path: Path) -> None:
    image = image_of({"a": torch.zeros(10_000)})
    first = image.write(tmp_path / "x.safetensors")
    image.tensors["a"].fill_(1)
    second = image.write(tmp_path / "x.safetensors")
    assert safetensors.torch.load_file(tmp_path / "x.safetensors")["a"].eq(1).all()
    assert first.checksum != second.checksum


def test_an_image_fits_tensors_of_the_same_names_shapes_and_types() -> None:
    image = TensorImage({"a": torch.zeros(4)})
    assert image.fits({"a": torch.ones(4)})
    others = (torch.zeros(2, 2), torch.zeros(5), torch.zeros(4, dtype=torch.float64))
    assert not any(image.fits({"a": other}) for other in others)
    assert not image.fits({"b": torch.zeros(4)})


def test_nothing_goes_through_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.close(os.open(tmp_path / "trial", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    write, are_direct = os.write, list[bool]()

    def watched(descriptor: int, data: memoryview) -> int:
        are_direct.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return write(descriptor, data)

    monkeypatch.setattr("echelon.train.tensorfile.os.write", watched)
    _write_and_compare(tmp_path / "x.safetensors")
    assert are_direct == [True]


def test_a_file_system_that_refuses_o_direct_gets_the_bytes_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def refuses(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, flags)

    monkeypatch.setattr("echelon.train.tensorfile.fcntl.fcntl", refuses)
    _write_and_compare(tmp_path / "x.safetensors")


def test_a_write_that_ends_within_a_block_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system does that wants larger blocks, or takes part of a piece."""
    write = os.write

    def short(descriptor: int, data: memoryview) -> int:
        is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        if is_direct and os.lseek(descriptor, 0, os.SEEK_CUR) > 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        tensorfile._set_direct(descriptor, False)
        count = write(descriptor, data[:1000])
        tensorfile._set_direct(descriptor, bool(is_direct))
        return count

    monkeypatch.setattr("echelon.train.tensorfile.os.write", short)
    monkeypatch.setattr("echelon.train.tensorfile._PIECE_BYTES", 2**22)
    image = image_of({"a": torch.arange(9000.0)})
    image.write(tmp_path / "x.safetensors")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors")["a"], torch.arange(9000.0))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        image_of({"a": torch.zeros(3)}).write(path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.safetensors", b"old")]
