"""Safetensors files: made in memory as they will lie on the disk, then written past the page cache.

Writing 730 MB through the page cache takes a processor most of a second, and takes it from training. O_DIRECT takes
next to nothing, but wants whole blocks at aligned addresses, which the image of a file in memory of its own has. Where
a file system refuses, the same bytes go the usual way.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from echelon.files.checksum import Written, new_checksum

_BLOCK_BYTES = 4096
"""What file systems with O_DIRECT are content with; those that are not get the bytes the usual way."""
_PIECE_BYTES = 2**28
"""Large: between two pieces the interpreter's lock is taken, which a thread of low priority is slow to give back."""
_DIRECT = getattr(os, "O_DIRECT", 0)
"""0 if the system does not have the flag."""
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32"}


class TensorImage:
    """A safetensors file in memory: fill `tensors`, then `write`, as often as you like."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._header = _header(tensors)
        self.bytes = len(self._header) + sum(tensor.nbytes for tensor in tensors.values())
        memory = mmap.mmap(-1, _whole_blocks(self.bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)  # the first copy into it is then twice as fast
        memory[: len(self._header)] = self._header
        self._memory = memoryview(memory)
        self.tensors = _views(torch.frombuffer(memory, dtype=torch.uint8), len(self._header), tensors)

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether tensors of these names, shapes and types have their place here."""
        return _header(tensors) == self._header

    def write(self, path: Path, may_replace: Callable[[], None] = lambda: None) -> Written:
        """Replace `path` by this file, atomically; when this returns it survives a power cut.

        `may_replace` is asked at the last moment, and raises if `path` is to stay as it is.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.unlink(missing_ok=True)  # never write through a link that was put there
            with open(temporary, "xb", buffering=0) as file:
                checksum = self._write(file.fileno())
                file.truncate(self.bytes)
                os.fsync(file.fileno())
            may_replace()
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return Written(checksum, self.bytes)

    def _write(self, descriptor: int) -> str:
        """Write whole blocks, the last perhaps beyond the file's end; the checksum is the file's."""
        _set_direct(descriptor, True)
        checksum = new_checksum()
        for start in range(0, self.bytes, _PIECE_BYTES):
            piece = self._memory[start : start + _PIECE_BYTES]
            checksum.update(piece[: self.bytes - start])
            while piece:
                piece = piece[_write_some(descriptor, piece) :]
        return checksum.hexdigest()


def _write_some(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _set_direct(descriptor, False)  # larger blocks are wanted here, or an earlier write ended within one
        return os.write(descriptor, data)


def _set_direct(descriptor: int, is_wanted: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT if is_wanted else flags & ~_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system does not support it
            raise


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _in_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Larger numbers first, so that each tensor lies at a multiple of its numbers' size."""
    return sorted(tensors.items(), key=lambda named: -named[1].itemsize)


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Length, then JSON, padded so that the first tensor is aligned."""
    entries, start = {}, 0
    for name, tensor in _in_order(tensors):
        end = start + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


def _views(image: Tensor, start: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The places of `tensors` in a file's bytes."""
    views = {}
    for name, tensor in _in_order(tensors):
        end = start + tensor.nbytes
        views[name] = image[start:end].view(tensor.dtype).view(tensor.shape)
        start = end
    return views
