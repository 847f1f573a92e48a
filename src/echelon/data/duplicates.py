"""Exact duplicates among any number of pairs, in bounded memory.

Each pair is known by 64 bits of its text's hash. Among 100 million different pairs the chance that even one
is taken for a duplicate is 3 in 10,000; a wider hash would cost memory for nothing a model could notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 8
PARTITION_PAIRS = 1 << 22
SCAN_PAIRS = 1 << 20


def pair_digests(lines: Iterable[bytes]) -> bytes:
    """The lines' hashes, DIGEST_BYTES each, one after the other."""
    return b"".join(hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest() for line in lines)


def first_occurrences(digests: Path, partition_pairs: int = PARTITION_PAIRS) -> NDArray[np.bool_]:
    """For each pair in a file of digests, whether it is the first of its kind.

    Hashes are spread evenly, so a partition by value holds about `partition_pairs` of them; equal ones meet.
    """
    pairs = digests.stat().st_size // DIGEST_BYTES
    is_first = np.ones(pairs, dtype=np.bool_)
    if pairs == 0:
        return is_first
    values = np.memmap(digests, dtype="<u8", mode="r")
    partitions = -(-pairs // partition_pairs)
    for partition in range(partitions):
        found = [
            start + np.flatnonzero(values[start : start + SCAN_PAIRS] % np.uint64(partitions) == partition)
            for start in range(0, pairs, SCAN_PAIRS)
        ]
        positions = np.concatenate(found)
        members = values[positions]
        order = np.argsort(members, kind="stable")  # stable, so that the first of equal pairs comes first
        repeats = order[1:][members[order[1:]] == members[order[:-1]]]
        is_first[positions[repeats]] = False
    return is_first
