"""Who computes which slots of a step, and with which random numbers."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """Slots whose gradients make one update, and those of them that this worker computes."""

    together: range
    mine: range


def share_of(num_slots: int, rank: int, size: int) -> range:
    """The slots of worker `rank` of `size`: consecutive, and at most one more than any other worker's."""
    return range(rank * num_slots // size, (rank + 1) * num_slots // size)


def slot_seed(seed: int, step: int, slot: int) -> int:
    """The random state of a slot's forward pass: it belongs to the step, not to the worker that computes it."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, step, slot), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
