"""Memory that all workers of one host see."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from echelon.comm.group import Group

_FOLDER = Path("/dev/shm")
_MARK_NUMBERS = 16


def are_on_one_host(group: Group) -> bool:
    """Whether the launcher says so, as torchrun does too."""
    return group.size > 1 and os.environ.get("LOCAL_WORLD_SIZE") == str(group.size)


def shared_buffers(group: Group, count: int) -> list[Tensor] | None:
    """A float32 buffer of `count` numbers for each worker, zeros, every one of them seen by all. Collective.

    None, everywhere, if some worker cannot see them: another container, too little shared memory. The file behind
    them has no name any more when this returns, so nothing is left behind however the workers end.
    """
    numbers = group.size * count + _MARK_NUMBERS
    mark = [float(part) for part in secrets.token_bytes(_MARK_NUMBERS)]
    path = _make_file(4 * numbers) if group.is_first else None
    path, mark = group.broadcast_json([path, mark])
    whole = _open_file(path, numbers)
    if group.is_first and whole is not None:
        whole[-_MARK_NUMBERS:] = torch.tensor(mark)
    group.barrier()
    # A file of the same name may be another one, in another container.
    is_same = whole is not None and whole[-_MARK_NUMBERS:].tolist() == mark
    has_failed = group.agree(not is_same)
    if group.is_first and path:
        Path(path).unlink()
    if has_failed or whole is None:
        return None
    return list(whole[: group.size * count].view(group.size, count))


def _make_file(size: int) -> str | None:
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"echelon-{os.getpid()}-", dir=_FOLDER)
    except OSError:
        return None
    try:
        os.posix_fallocate(descriptor, 0, size)  # now, and not as a bus error later
    except OSError:
        Path(path).unlink()
        return None
    finally:
        os.close(descriptor)
    return path


def _open_file(path: str | None, numbers: int) -> Tensor | None:
    try:
        if path is None or Path(path).stat().st_size != 4 * numbers:
            return None
        return torch.from_file(path, shared=True, size=numbers, dtype=torch.float32)
    except (OSError, RuntimeError):
        return None
