from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from echelon.models.kernels.build import KernelsUnavailableError
from echelon.models.kernels.calls import Kernels


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors here are tiny: threads would wait for each other, on a busy machine for very long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def kernels() -> Kernels:
    try:
        return Kernels()
    except KernelsUnavailableError as reason:
        pytest.skip(str(reason))
