"""Random orders and numbers as pure functions of a key.

They are made from raw bits of PCG64, which NumPy promises never to change; `permutation` and its like may.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def bit_generator(*key: int) -> np.random.PCG64:
    """Random bits determined by a key, such as (seed, purpose, epoch)."""
    return np.random.PCG64(np.random.SeedSequence(key))


def random_order(count: int, *key: int) -> NDArray[np.int64]:
    """A permutation of 0 ... count - 1 determined by a key."""
    return np.argsort(bit_generator(*key).random_raw(count), kind="stable")


def uniforms(bits: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """Numbers from 0 up to, not including, 1."""
    raw: NDArray[np.uint64] = bits.random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bits: np.random.PCG64, limit: int, count: int) -> NDArray[np.int64]:
    """Whole numbers from 0 up to, not including, `limit`."""
    return (uniforms(bits, count) * limit).astype(np.int64)


def symmetric_beta(bits: np.random.PCG64, shape: float) -> float:
    """A number from Beta(shape, shape), by rejection."""
    while True:
        one, other = uniforms(bits, 2).tolist()
        if shape >= 1:
            if other < (4 * one * (1 - one)) ** (shape - 1):
                return float(one)
        else:
            left, right = one ** (1 / shape), other ** (1 / shape)  # Jöhnk's algorithm
            if 0 < left + right <= 1:
                return float(left / (left + right))
