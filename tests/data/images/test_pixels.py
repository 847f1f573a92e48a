"""Picture files of every kind become plain colours of the right size."""

from __future__ import annotations

import io
import os
import shlex
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, ExifTags, Image, ImageOps

from echelon.data.images.pixels import FORMATS, decode, middle
from tests.data.images.pictures import as_bytes, jpeg_of_many_segments, picture


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


def with_orientation(image: Image.Image, orientation: int, kind: str) -> bytes:
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(stream, kind, exif=exif)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_seen_as_its_exif_orientation_says(orientation: int, kind: str) -> None:
    """Compared with Pillow's own ImageOps.exif_transpose."""
    content = with_orientation(picture(5), orientation, kind)
    with Image.open(io.BytesIO(content)) as opened:
        upright = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    np.testing.assert_array_equal(decode(content, None), upright)


def test_a_jpeg_that_is_read_at_a_smaller_size_is_turned_too() -> None:
    content = with_orientation(picture(5, 160, 240), 6, "JPEG")
    assert decode(content, 20).shape == (30, 20, 3)


def test_exif_that_cannot_be_read_counts_for_nothing() -> None:
    stream = io.BytesIO()
    picture(5).save(stream, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0" * 3)
    assert decode(stream.getvalue(), None).shape == (20, 30, 3)


def test_exif_in_thousands_of_parts_is_not_joined() -> None:
    with pytest.raises(ValueError, match="EXIF in more than 16 parts"):
        decode(jpeg_of_many_segments(16 << 20), None)


def test_what_pillow_says_about_its_own_objects_is_not_shown() -> None:
    with pytest.raises(ValueError, match="it is in none of the formats JPEG, PNG"):
        decode(b"no picture", 10)


def test_a_picture_of_very_many_pixels_is_read_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    content = as_bytes(picture(3, 40, 60))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    assert decode(content, 10).shape == (10, 15, 3)  # warnings are errors in tests
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"^it has more than 2,000 pixels$"):
        decode(content, 10)


def test_a_picture_of_very_many_scans_is_not_decoded() -> None:
    """1 MB of them took minutes, and nobody else got an answer meanwhile."""
    stored = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stored, "JPEG", progressive=True)
    content = stored.getvalue()
    assert decode(content, None).shape == (8, 8, 3)
    last = content.rindex(b"\xff\xda")
    with pytest.raises(ValueError, match="more than 200 scans"):
        decode(content[:last] + content[last:-2] * 300 + content[-2:], None)


def test_a_file_that_is_no_picture_is_an_error() -> None:
    with pytest.raises((OSError, ValueError)):
        decode(as_bytes(picture(3))[:200], 10)


@pytest.mark.parametrize("kind", ["EPS", "DDS", "ICO", "PCX", "SGI", "TGA"])
def test_only_the_listed_formats_are_decoded(kind: str) -> None:
    with pytest.raises(ValueError, match="none of the formats"):
        decode(as_bytes(picture(1), kind), None)


def test_postscript_never_reaches_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(mark))}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow remembers whether it has found one
    with pytest.raises(ValueError, match="none of the formats"):
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
