from __future__ import annotations

import pytest
import torch

from echelon.models.beam_search import Search, beam_search
from echelon.models.low_precision import in_low_precision
from echelon.models.sequences import Sequences
from tests.models.test_beam_search import SOURCES, make_model


@pytest.mark.parametrize("tied", [True, False])
def test_the_copy_gives_what_autocast_gives_to_the_bit(tied: bool) -> None:
    model = make_model(tied=tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    low = in_low_precision(model, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = beam_search(model, Sequences.of(SOURCES), Search(beam=3, n_best=3))
        quick = beam_search(low, Sequences.of(SOURCES), Search(beam=3, n_best=3))
    assert plain == quick
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
