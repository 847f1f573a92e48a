from __future__ import annotations

import pytest
import torch

from echelon.train.exchange.codecs import Wire, build_codec

NUMBERS = torch.randn(3, 2048, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 3, 2048)


@pytest.mark.parametrize(
    ("wire", "bytes_a_number", "relative"),
    [("float32", 4, 0.0), ("bf16", 2, 2**-8), ("fp16", 2 + 4 / 512, 2**-11), ("int8", 1 + 4 / 512, None)],
)
def test_numbers_come_back_from_the_bytes_they_should_take(
    wire: Wire, bytes_a_number: float, relative: float | None
) -> None:
    codec = build_codec(wire)
    encoded = codec.encode(NUMBERS)
    assert encoded.shape == (3, round(2048 * bytes_a_number))
    decoded = codec.decode(encoded)
    if relative is not None:
        largest = NUMBERS.view(3, -1, 512).abs().amax(dim=2, keepdim=True).expand(3, -1, 512).reshape(3, -1)
        slack = largest * 2**-24 if wire == "fp16" else 0.0
        assert ((decoded - NUMBERS).abs() <= NUMBERS.abs() * relative + slack).all()
    else:
        steps = NUMBERS.view(3, -1, 512).abs().amax(dim=2) / 127
        assert ((decoded - NUMBERS).view(3, -1, 512).abs() <= 0.5001 * steps.unsqueeze(2)).all()


@pytest.mark.parametrize("wire", ["float32", "bf16", "fp16", "int8"])
def test_zeros_stay_zeros_and_what_is_not_finite_stays_so(wire: Wire) -> None:
    codec = build_codec(wire)
    numbers = torch.zeros(2, 512)
    assert codec.decode(codec.encode(numbers)).eq(0).all()
    numbers[1, 7] = float("inf")
    decoded = codec.decode(codec.encode(numbers))
    assert decoded[0].eq(0).all()
    assert not decoded[1].isfinite().all()
