"""Images from anywhere, as RGB: whatever a camera, a phone or the web may produce."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesrnn.files import printable

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 100_000_000
"""Larger images are refused: decoded, they would take more than 300 MB."""

MOST_BYTES = 500_000_000
"""Larger files are not read."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""No others are tried: some would start another program."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")


def decode(content: bytes) -> Image:
    """An image in RGB, upright, on white where it is transparent; ValueError says what is wrong with it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not content:
        raise ValueError("the file is empty")
    try:
        with warnings.catch_warnings():
            # Of damaged metadata, and of sizes, which are checked here.
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise _TooLargeError(f"{width}x{height} pixels are more than {MOST_PIXELS:,}")
            image.load()
            image = ImageOps.exif_transpose(image)
            return _rgb(image)
    except UnidentifiedImageError:
        raise ValueError("not an image in a known format") from None
    except Image.DecompressionBombError:
        raise ValueError(f"more than {MOST_PIXELS:,} pixels") from None
    except _TooLargeError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # the decoders raise nearly anything for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the image is damaged ({printable(reason[:100])})") from None


def under(folder: Path) -> list[str]:
    """The images in a folder and the folders inside it, as paths relative to it, in order."""
    if not folder.is_dir():
        what = "is a file; name its folder" if folder.is_file() else "no such folder"
        raise ValueError(f"{folder}: {what}.")
    found = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not found:
        raise ValueError(f"{folder} has no images ({', '.join(SUFFIXES)}).")
    return found


def read_file(path: Path) -> bytes:
    """The content of an image file; ValueError says why it cannot be read."""
    try:
        if not path.is_file():
            raise ValueError("it is a folder" if path.is_dir() else "no such file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"the file has more than {MOST_BYTES:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None


class _TooLargeError(Exception):
    """An image that would take too much memory."""


def _rgb(image: Image) -> Image:
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # more than 8 bits a pixel
        high = np.asarray(image).max(initial=0)
        white = 65535 if image.mode.startswith("I;16") or high > 255 else 255 if high > 1 else 1
        return (
            image.convert("F").point(lambda value: value * 255 / white).convert("L").convert("RGB")
        )
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")
