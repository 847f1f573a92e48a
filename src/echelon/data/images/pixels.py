"""Decoding image files to pixels, and resizing."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from echelon.data.images.image_store import Pixels
from echelon.extras import require_extra

DECODING_VERSION = 2
"""Changes whenever the same image file gives other pixels: since 2 it is turned as its EXIF orientation says."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""What Pillow may decode. Left to itself it tries all of its 40 decoders, and EPS runs Ghostscript on the file."""
LONGEST_RATIO = 4
"""The largest ratio of an image's sides; the ends of longer images are cut off."""
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What brings an image upright, by its EXIF orientation."""


_SCAN = b"\xff\xda"
"""What a scan of a JPEG begins with; elsewhere in its data these two bytes do not follow each other."""
_MOST_SCANS = 200
"""Progressive images have about ten. Every scan costs as much as decoding a whole image."""


_EXIF = b"Exif\0\0"
_MOST_EXIF = 16
"""Segments of it in a JPEG, which has one. Pillow joins them one by one, and thousands take hours."""


class TooManyPixelsError(ValueError):
    """An image with more pixels than Pillow's limit for harmless ones."""


def decode(content: bytes, stored_pixels: int | None) -> Pixels:
    """[H, W, 3] of an image in one of FORMATS, upright: grey, palette, CMYK and transparent ones become plain colours.

    The shorter side becomes `stored_pixels` long, if given. Raises OSError or ValueError for any other content.
    """
    with open_picture(content) as picture:
        if stored_pixels is not None and picture.format == "JPEG":
            picture.draft("RGB", (stored_pixels, stored_pixels))  # JPEG can be read at 1/2, 1/4, 1/8
        picture.load()
        plain = _to_colours(_upright(picture))
    if stored_pixels is not None:
        plain = _resized(plain, stored_pixels)
    return np.asarray(plain, np.uint8)


@contextmanager
def open_picture(content: bytes) -> Iterator[Any]:
    """Pillow's image of a file's content. Whatever is wrong with it, also within the context, is raised as OSError or
    ValueError, in words that a user understands."""
    image = require_extra("PIL.Image", "images")
    # Pillow warns of many pixels and of odd EXIF; it can read such images, and refuses the dangerous ones by itself.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        if content.count(_EXIF) > _MOST_EXIF:
            raise ValueError(f"it has EXIF in more than {_MOST_EXIF} parts")
        with image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.format in ("JPEG", "MPO") and content.count(_SCAN) > _MOST_SCANS:
                raise ValueError(f"it has more than {_MOST_SCANS} scans")
            yield picture
    except image.DecompressionBombError as error:
        raise TooManyPixelsError(f"it has more than {2 * image.MAX_IMAGE_PIXELS:,} pixels") from error
    except require_extra("PIL", "images").UnidentifiedImageError as error:
        raise ValueError(f"it is in none of the formats {', '.join(FORMATS)}") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file may make its decoder raise anything at all
        raise ValueError(str(error)) from error


def _upright(picture: Any) -> Any:
    """The image turned as its EXIF orientation says; EXIF that cannot be read counts for nothing.

    Not by Pillow's exif_transpose, which also writes the EXIF anew, and fails if it cannot.
    """
    try:
        orientation = picture.getexif().get(_ORIENTATION)
    except Exception:  # it may be damaged in any way, and the pixels are right all the same
        return picture
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return picture if turn is None else picture.transpose(_constant("Transpose", turn))


def _to_colours(picture: Any) -> Any:
    """As red, green and blue; transparent parts become white; 16 bits of grey become 8."""
    if picture.mode.startswith("I;16"):
        picture = picture.point(lambda value: value / 256).convert("L")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        seen = picture.convert("RGBA")
        behind = require_extra("PIL.Image", "images").new("RGBA", seen.size, "white")
        behind.alpha_composite(seen)
        picture = behind
    return picture.convert("RGB")


def _resized(picture: Any, shorter: int) -> Any:
    width, height = picture.size
    most = LONGEST_RATIO * min(width, height)
    left, top = max(width - most, 0) / 2, max(height - most, 0) / 2
    box = (left, top, width - left, height - top)
    scale = shorter / min(width, height)
    size = tuple(max(shorter, round((end - start) * scale)) for start, end in ((left, box[2]), (top, box[3])))
    return picture if size == picture.size else picture.resize(size, _bilinear(), box=box)


def _bilinear() -> Any:
    return _constant("Resampling", "BILINEAR")


def _constant(group: str, name: str) -> Any:
    return getattr(getattr(require_extra("PIL.Image", "images"), group), name)


def resize(picture: Pixels, pixels: int, box: tuple[float, float, float, float] | None = None) -> Pixels:
    """A part of an image, given as left, top, right and bottom, brought to a square of `pixels`."""
    image = require_extra("PIL.Image", "images").fromarray(picture)
    return np.asarray(image.resize((pixels, pixels), _bilinear(), box=box), np.uint8)


def middle(picture: Pixels, pixels: int) -> Pixels:
    """The square in the middle; the image is enlarged first if it is smaller than that."""
    height, width = picture.shape[:2]
    if min(height, width) < pixels:
        side = min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        return resize(picture, pixels, (left, top, left + side, top + side))
    top, left = (height - pixels) // 2, (width - pixels) // 2
    return picture[top : top + pixels, left : left + pixels]
