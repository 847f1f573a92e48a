"""Writing a safetensors file in one pass: the bytes are hashed on their way to the disk, never read back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 64 * 2**20
"""Large: between two blocks the interpreter's lock is taken, which a thread of idle priority is slow to give back."""
_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32"}


@dataclass(frozen=True)
class Written:
    """What a file became."""

    sha256: str
    bytes: int


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Written:
    """Replace `path` by a safetensors file of `arrays`, atomically; when this returns it survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # never write through a link that somebody put there
        with open(temporary, "wb", buffering=0) as file:
            digest, total = hashlib.sha256(), 0
            for block in _blocks(arrays):
                view = memoryview(block)
                digest.update(view)
                while view:
                    view = view[file.write(view) :]
                total += len(block)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Written(digest.hexdigest(), total)


def _blocks(arrays: Mapping[str, NDArray[Any]]) -> list[memoryview | bytes]:
    blocks: list[memoryview | bytes] = [_header(arrays)]
    for array in arrays.values():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        blocks += [content[start : start + _BLOCK_BYTES] for start in range(0, len(content), _BLOCK_BYTES)]
    return blocks


def _header(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Length, then JSON, padded so that the first tensor is aligned."""
    entries, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        entries[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
