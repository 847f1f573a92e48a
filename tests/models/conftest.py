from __future__ import annotations

import pytest

from echelon.models.kernels.build import KernelsUnavailableError
from echelon.models.kernels.ops import Kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    try:
        return Kernels()
    except KernelsUnavailableError as reason:
        pytest.skip(str(reason))
