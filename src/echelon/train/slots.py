"""A step's slots at a worker, and with which random numbers they are computed."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """Slots whose gradients make one update, and those of them that this worker computes."""

    together: range
    mine: range


def slot_seed(seed: int, step: int, slot: int) -> int:
    """The random state of a slot's forward pass: it belongs to the step, not to the worker that computes it."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, step, slot), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
