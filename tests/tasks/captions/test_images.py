"""Images from anywhere become RGB, or are refused with a reason."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from bayesrnn.tasks.captions.data import images
from bayesrnn.tasks.captions.data.images import decode, read_file, under


def _bytes(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _colour(content: bytes) -> tuple[int, int, int]:
    image = decode(content)
    assert image.mode == "RGB"
    middle = image.getpixel((image.width // 2, image.height // 2))
    assert isinstance(middle, tuple)
    return middle


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_formats(kind):
    red, green, blue = _colour(_bytes(Image.new("RGB", (20, 10), (200, 100, 50)), kind))
    assert abs(red - 200) < 6
    assert abs(green - 100) < 6
    assert abs(blue - 50) < 6


def test_grey_cmyk_palette_and_alpha():
    assert _colour(_bytes(Image.new("L", (9, 9), 77))) == (77, 77, 77)
    assert _colour(_bytes(Image.new("1", (9, 9), 1))) == (255, 255, 255)
    cmyk = _bytes(Image.new("CMYK", (9, 9), (0, 255, 255, 0)), "JPEG")
    red, green, blue = _colour(cmyk)
    assert red > 200 > 60 > max(green, blue)
    assert _colour(_bytes(Image.new("RGB", (9, 9), (0, 153, 0)).convert("P"))) == (0, 153, 0)
    # Transparent pixels are white, whatever colour they have.
    assert _colour(_bytes(Image.new("RGBA", (9, 9), (10, 20, 30, 0)))) == (255, 255, 255)
    assert _colour(_bytes(Image.new("LA", (9, 9), (0, 255)))) == (0, 0, 0)


def test_sixteen_bits_a_pixel_keep_their_brightness():
    values = np.full((9, 9), 32768, dtype=np.uint16)
    assert _colour(_bytes(Image.fromarray(values)))[0] in (127, 128)
    assert _colour(_bytes(Image.fromarray(values // 200)))[0] == 0  # nearly black stays so
    fractions = np.full((9, 9), 0.5, dtype=np.float32)
    assert _colour(_bytes(Image.fromarray(fractions), "TIFF"))[0] in (127, 128)


def test_an_image_that_is_turned_by_its_metadata_is_upright():
    image = Image.new("RGB", (30, 10), "white")
    image.paste((255, 0, 0), (0, 0, 15, 10))  # red on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by 90 degrees
    turned = decode(_bytes(image, "JPEG", exif=exif, quality=95))
    assert turned.size == (10, 30)
    top = turned.getpixel((5, 3))
    assert isinstance(top, tuple)
    assert top[1] < 60  # the left is now at the top


def test_one_pixel_is_enough():
    assert decode(_bytes(Image.new("RGB", (1, 1), "blue"))).size == (1, 1)


def test_what_cannot_be_read_is_refused_with_a_reason(monkeypatch):
    whole = _bytes(
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "JPEG"
    )
    for content, reason in [
        (b"", "empty"),
        (b"this is a text, not an image", "not an image"),
        (whole[: len(whole) // 2], "damaged"),
        (_bytes(Image.new("RGB", (64, 64)))[:60], "damaged"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (_bytes(Image.new("RGB", (8, 8)), "DDS"), "not an image"),
    ]:
        with pytest.raises(ValueError, match=reason):
            decode(content)
    monkeypatch.setattr(images, "MOST_PIXELS", 100)
    with pytest.raises(ValueError, match="64x64 pixels are more than 100"):
        decode(whole)


def test_a_small_file_that_claims_to_be_huge_takes_no_memory():
    huge = bytearray(_bytes(Image.new("1", (8, 8))))
    at = huge.index(b"IHDR") + 4
    huge[at : at + 8] = (60_000).to_bytes(4, "big") * 2
    import zlib

    huge[at + 13 : at + 17] = zlib.crc32(huge[at - 4 : at + 13]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="pixels"):
        decode(bytes(huge))


def test_the_images_of_a_folder(tmp_path):
    inside = tmp_path / "more"
    inside.mkdir()
    for path in (tmp_path / "b.jpg", tmp_path / "a.PNG", inside / "c.webp", tmp_path / "notes.txt"):
        path.write_bytes(b"x")
    assert under(tmp_path) == ["a.PNG", "b.jpg", "more/c.webp"]
    (inside / "c.webp").unlink()
    for folder, reason in [
        (inside, "has no images"),
        (tmp_path / "none", "no such folder"),
        (tmp_path / "b.jpg", "is a file"),
    ]:
        with pytest.raises(ValueError, match=reason):
            under(folder)
    with pytest.raises(ValueError, match="no such file"):
        read_file(tmp_path / "none.jpg")
    with pytest.raises(ValueError, match="it is a folder"):
        read_file(inside)
