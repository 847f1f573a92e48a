"""Picture files of every kind become plain colours of the right size."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from echelon.data.images.decoding import FORMATS, decode, middle
from tests.data.images.pictures import as_bytes, picture


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


@pytest.mark.parametrize("kind", ["EPS", "DDS", "ICO", "PCX", "SGI", "TGA"])
def test_only_the_listed_formats_are_decoded(kind: str) -> None:
    with pytest.raises(OSError, match="cannot identify"):
        decode(as_bytes(picture(1), kind), None)


def test_postscript_never_reaches_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(mark))}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow remembers whether it has found one
    with pytest.raises(OSError, match="cannot identify"):
        decode(as_bytes(picture(1), "EPS"), 10)
    assert not mark.exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_whatever_is_damaged_the_error_is_one_of_two(kind: str) -> None:
    dice = np.random.default_rng(4)
    whole = as_bytes(picture(3), kind)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.integers(4, min(len(damaged), 300))] = dice.integers(256)
        with suppress(OSError, ValueError):
            decode(bytes(damaged), 10)


def test_the_middle_is_cut_out_or_enlarged() -> None:
    pixels = np.arange(6 * 10 * 3, dtype=np.uint8).reshape(6, 10, 3)
    np.testing.assert_array_equal(middle(pixels, 4), pixels[1:5, 3:7])
    assert middle(pixels, 12).shape == (12, 12, 3)
