"""A step's slots at a worker, and with which random numbers they are computed."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """One update of the weights, and this worker's part in it."""

    slots: range
    """Whose gradients make the update."""
    mine: range
    """The slots that this worker computes."""
    is_applied_here: bool = True
    """Whether this worker's optimiser makes the update, and not a parameter server's."""


def slot_seed(seed: int, step: int, slot: int) -> int:
    """The random state of a slot's forward pass: it belongs to the step, not to the worker that computes it."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, step, slot), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
