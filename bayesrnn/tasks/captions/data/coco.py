"""Captions in the format of MSCOCO: a folder `images`, and captions_{train,val,test}.json beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from bayesrnn.files import printable
from bayesrnn.tasks.captions.data.captioned import SPLITS, Captioned, CaptionedImages
from bayesrnn.tasks.captions.data.images import read_file

MOST_WORDS = 100
"""Longer captions are left out: all are padded to the longest."""
MOST_CHARACTERS = 5_000
"""Longer captions are no captions."""
MOST_BYTES = 1_000_000_000
"""Larger files of captions are not read."""

_FILES = {
    "train": "captions_train.json",
    "valid": "captions_val.json",
    "test": "captions_test.json",
}


def load_coco(folder: Path, splits: Sequence[str] = SPLITS) -> CaptionedImages:
    """Splits of the data set in a folder; what cannot be used is left out and counted."""
    images = folder / "images"
    if not images.is_dir():
        raise ValueError(f"{folder} has no folder images.")
    skipped: list[str] = []
    found = {}
    for split in splits:
        found[split], left_out = _read_split(folder / _FILES[split], images)
        skipped += left_out

    return CaptionedImages(
        folder.resolve().name, found, lambda name: read_file(images / name), tuple(skipped)
    )


def _read_split(path: Path, images: Path) -> tuple[tuple[Captioned, ...], list[str]]:
    """The captioned images of one file, in its order, and what was left out."""
    content = _read_json(path)
    names: dict[str, str] = {}  # by id, as text: some files write 7 here and "7" there
    ids: dict[str, int | str] = {}
    for image in _list(content, "images", path):
        number, name = _field(image, "id", (int, str), "images", path), _safe_name(image, path)
        if names.setdefault(str(number), name) != name:
            shown = printable(f"{number}")[:100]
            raise ValueError(f"{path}: two images have the id {shown}.")
        ids.setdefault(name, number)
    captions: dict[str, list[str]] = {name: [] for name in names.values()}
    strangers = empty = long = endless = 0
    for annotation in _list(content, "annotations", path):
        image = str(_field(annotation, "image_id", (int, str), "annotations", path))
        text = _field(annotation, "caption", (str,), "annotations", path)
        caption = text.encode("utf-8", "replace").decode().strip()  # JSON may hold half a character
        if image not in names:
            strangers += 1
        elif len(caption) > MOST_CHARACTERS:
            endless += 1
        elif not any(map(str.isalnum, caption)):
            empty += 1
        elif len(caption.split()) > MOST_WORDS:
            long += 1
        else:
            captions[names[image]].append(caption)
    missing = [name for name, said in captions.items() if said and not _is_file(images / name)]
    silent = [name for name, said in captions.items() if not said]
    skipped = [
        _left_out("captions of images that are not listed", strangers, path),
        _left_out("captions without words", empty, path),
        _left_out(f"captions of more than {MOST_WORDS} words", long, path),
        _left_out(f"captions of more than {MOST_CHARACTERS:,} characters", endless, path),
        _left_out("images without a caption", len(silent), path, silent),
        _left_out(f"images that are not in {images.name}/", len(missing), path, missing),
    ]
    absent = set(missing)
    found = tuple(
        Captioned(name, tuple(said), ids[name])
        for name, said in captions.items()
        if said and name not in absent
    )
    if not found:
        raise ValueError(f"{path} has no image with a caption and a file in {images}.")
    return found, [line for line in skipped if line]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}.")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON: not UTF-8 at byte {error.start}; convert the file."
        ) from None
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise ValueError(f"{path} is not valid JSON: {printable(str(error))}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not in the caption format of MSCOCO: it is not an object.")
    return content


def _list(content: dict[str, Any], name: str, path: Path) -> list[Any]:
    found = content.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{path} is not in the caption format of MSCOCO: it has no list {name!r}.")
    return found


def _field(entry: Any, name: str, kinds: tuple[type, ...], part: str, path: Path) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kinds) or isinstance(value, bool):
        expected = " or ".join({int: "a number", str: "a text"}[kind] for kind in kinds)
        raise ValueError(f"{path}: an entry of {part!r} has no {name!r} that is {expected}.")
    return value


def _safe_name(image: Any, path: Path) -> str:
    """The file name of an image, which must lie inside the folder of images."""
    name = _field(image, "file_name", (str,), "images", path)
    parts = PurePosixPath(name.replace("\\", "/"))
    if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
        shown = printable(" ".join(name.split()))[:100]
        raise ValueError(f"{path}: the file name '{shown}' is not one inside the folder of images.")
    return name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def _left_out(what: str, number: int, path: Path, names: list[str] | None = None) -> str:
    example = f", such as {printable(' '.join(names[0].split()))[:100]}" if names else ""
    return f"{path.name}: left out {what}: {number:,}{example}" if number else ""
