from __future__ import annotations

import numpy as np
import pytest

from echelon.data.randomness import bit_generator, symmetric_beta


@pytest.mark.parametrize("shape", [0.2, 1.0, 3.0])
def test_a_symmetric_beta_has_its_mean_and_variance(shape: float) -> None:
    bits = bit_generator(1)
    draws = np.array([symmetric_beta(bits, shape) for _ in range(4000)])
    assert draws.mean() == pytest.approx(0.5, abs=0.03)
    assert draws.var() == pytest.approx(1 / (4 * (2 * shape + 1)), rel=0.1)
    assert ((draws >= 0) & (draws <= 1)).all()


def test_it_belongs_to_its_bits() -> None:
    assert symmetric_beta(bit_generator(7), 0.4) == symmetric_beta(bit_generator(7), 0.4)
    assert symmetric_beta(bit_generator(7), 0.4) != symmetric_beta(bit_generator(8), 0.4)
