"""What a captioner learns from: images, each with several captions, in three splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Captioned:
    """An image, by its name in the data set, and its reference captions as they were written."""

    image: str
    captions: tuple[str, ...]
    id: int | str = ""
    """Its id in the annotations, if it has one."""


@dataclass(frozen=True)
class CaptionedImages:
    """A data set: its splits by name (train, valid, test), and how to read an image by its name."""

    name: str
    splits: Mapping[str, tuple[Captioned, ...]]
    read: Callable[[str], bytes]
    """The content of an image file; ValueError if it cannot be read."""
    skipped: tuple[str, ...] = field(default=())
    """What was left out on reading, one line each."""
    is_right: Callable[[str, str], bool] | None = None
    """Whether a caption is true of the image with a name, if the data set can tell."""
