"""Picture files of every kind become plain colours of the right size."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from echelon.data.images.decoding import decode, middle
from tests.data.images.pictures import as_bytes, damaged_dds, picture


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("RGB", "BMP")],
)
def test_every_kind_of_picture_becomes_colours(mode: str, kind: str) -> None:
    assert decode(as_bytes(picture(1).convert(mode), kind), None).shape == (20, 30, 3)


def test_grey_stays_grey_and_lossless_stays_exact() -> None:
    grey = decode(as_bytes(picture(1).convert("L")), None)
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
    np.testing.assert_array_equal(decode(as_bytes(picture(2)), None), np.asarray(picture(2)))


def test_what_is_transparent_shows_white() -> None:
    empty = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    assert (decode(as_bytes(empty), None) == 255).all()


def test_sixteen_bits_of_grey_become_eight() -> None:
    values = np.array([[0, 256 * 100], [256 * 200, 65535]], np.uint16)
    seen = decode(as_bytes(Image.fromarray(values)), None)
    np.testing.assert_allclose(seen[..., 0], [[0, 100], [200, 255]], atol=1)


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(20, 30, (10, 15)), (50, 20, (25, 10)), (6, 90, (10, 40))]
)
def test_the_shorter_side_gets_its_length(height: int, width: int, expected: tuple[int, int]) -> None:
    assert decode(as_bytes(picture(3, height, width)), 10).shape == (*expected, 3)


def test_a_file_that_is_no_picture_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot identify"):
        decode(b"no picture", 10)
    with pytest.raises((OSError, ValueError)):
        decode(as_bytes(picture(3))[:200], 10)
    with pytest.raises(ValueError, match="Unknown pixel format"):
        decode(damaged_dds(), 10)


@pytest.mark.parametrize("kind", ["BLP", "DDS"])
def test_whatever_is_damaged_the_error_is_one_of_two(kind: str) -> None:
    dice = np.random.default_rng(4)
    whole = as_bytes(picture(3).convert("P" if kind == "BLP" else "RGB"), kind)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.integers(4, min(len(damaged), 300))] = dice.integers(256)
        with suppress(OSError, ValueError):
            decode(bytes(damaged), 10)


def test_the_middle_is_cut_out_or_enlarged() -> None:
    pixels = np.arange(6 * 10 * 3, dtype=np.uint8).reshape(6, 10, 3)
    np.testing.assert_array_equal(middle(pixels, 4), pixels[1:5, 3:7])
    assert middle(pixels, 12).shape == (12, 12, 3)
