"""Pictures of strangers are read in a process of their own, which may take so much and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from echelon.data.images.image_store import Normalisation
from echelon.data.images.pixels import TooManyPixelsError
from echelon.inference.pictures import PictureRules
from echelon.serve.picture_reader import PictureReader, ReadingLimits
from tests.data.images.pictures import (
    as_bytes,
    jpeg_of_many_segments,
    picture,
    png_of_many_chunks,
    tiff_of_shared_values,
)

RULES = PictureRules(("cat", "dog"), 8, Normalisation((0.5,) * 3, (0.5,) * 3), shorter=10)
LIMITS = ReadingLimits(pixels=100_000, seconds=1, memory_bytes=256 << 20)


@pytest.fixture
def reader() -> Iterator[PictureReader]:
    reader = PictureReader(RULES, LIMITS)
    yield reader
    reader.close()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_picture_is_seen_as_elsewhere(reader: PictureReader, kind: str) -> None:
    content = as_bytes(picture(3, 40, 30), kind)
    np.testing.assert_array_equal(reader.see(content), RULES.see(content))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(jpeg_of_many_segments(4 << 20), id="EXIF that is joined for minutes"),
        pytest.param(png_of_many_chunks(8 << 20), id="chunks that are looked at for many seconds"),
        pytest.param(tiff_of_shared_values(8 << 20), id="values that take 480 gigabytes"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"dear", id="text"),
    ],
)
def test_what_takes_too_much_is_refused_and_the_next_picture_read(
    reader: PictureReader, content: bytes
) -> None:
    with pytest.raises(ValueError, match=r"takes too much time or memory|no picture"):
        reader.see(content)
    assert reader.see(as_bytes(picture(1))).shape == (8, 8, 3)


def test_a_picture_of_too_many_pixels_is_not_decoded(reader: PictureReader) -> None:
    with pytest.raises(TooManyPixelsError, match="more than 100,000 pixels"):
        reader.see(as_bytes(Image.new("1", (1000, 101))))


def test_the_process_knows_no_secrets(reader: PictureReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_TOKEN", "a-token-of-ours")
    reader.see(as_bytes(picture(1)))
    assert reader._process is not None
    environment = Path(f"/proc/{reader._process.pid}/environ")
    if not environment.exists():
        pytest.skip("no /proc here")
    assert b"a-token-of-ours" not in environment.read_bytes()
