"""Captioned images with their features: what a run is trained and evaluated on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bayesrnn.data.download import cache_folder
from bayesrnn.files import expanded
from bayesrnn.tasks.captions.config import SHAPES, CaptionsConfig
from bayesrnn.tasks.captions.data.captioned import SPLITS, CaptionedImages
from bayesrnn.tasks.captions.data.coco import load_coco
from bayesrnn.tasks.captions.data.shapes import load_shapes
from bayesrnn.tasks.captions.encoders.encoder import EFFICIENTNET, Encoder, load_encoder
from bayesrnn.tasks.captions.features import Features, check_key, extract, load_features

IMAGES_CHECKED = 50
"""Number of images whose files are compared with the features of a ready-made file."""


@dataclass(frozen=True)
class Loaded:
    """A data set and the features of its images; images without features are left out."""

    images: CaptionedImages
    features: Features
    notes: tuple[str, ...]
    """What was left out, one line each."""


def find_images(data: str, splits: Sequence[str] = SPLITS) -> CaptionedImages:
    """Splits of a data set, by its name or folder."""
    if data == SHAPES:
        return load_shapes()
    folder = expanded(data)
    if not folder.is_dir():
        raise ValueError(
            f"--data {data}: no such folder; give one with images/ and captions_train.json, "
            f"captions_val.json and captions_test.json, or use {SHAPES}."
        )
    return load_coco(folder, splits)


def default_encoder(data: str) -> str:
    return SHAPES if data == SHAPES else EFFICIENTNET


def load(config: CaptionsConfig, splits: Sequence[str] = SPLITS) -> Loaded:
    """The data of a run, and the features of the images of some splits.

    The features come from the file given by the settings, or are computed and kept in the cache.
    """
    images = find_images(config.data, splits)
    chosen = {split: images.splits[split] for split in splits}
    names = [entry.image for split in chosen.values() for entry in split]
    notes, skipped = list(images.skipped), {}
    if config.features:
        features = load_features(expanded(config.features))
        source = config.features
        if config.encoder_key:
            check_key(features, config.encoder_key, source)
        elif config.encoder and config.encoder != features.encoder:
            raise ValueError(
                f"{source} holds features of {features.encoder}, not of --encoder {config.encoder}."
            )
        _check_images(images, names, features, source)
    else:
        encoder = load_encoder(config.encoder or default_encoder(config.data))
        source = f"--encoder {encoder.name}"
        if config.encoder_key and config.encoder_key != encoder.key:
            raise ValueError(
                f"{source} is {encoder.key}, but the run was trained with {config.encoder_key}; "
                "use the encoder of the run."
            )
        features, skipped = cached_features(images, names, encoder, config.data)
        notes += [f"left out {name}: {reason}" for name, reason in skipped.items()]
    kept = {
        split: tuple(entry for entry in entries if entry.image in features.index)
        for split, entries in chosen.items()
    }
    for split, entries in kept.items():
        unreadable = sum(entry.image in skipped for entry in chosen[split])
        lost = len(chosen[split]) - len(entries) - unreadable
        if not entries:
            raise ValueError(f"no image of the {split} split of {config.data} is in {source}.")
        if lost:
            notes.append(f"{split}: left out images without features: {lost:,}")
    return Loaded(replace(images, splits=kept), features, tuple(notes))


def _check_images(
    images: CaptionedImages, names: Sequence[str], features: Features, source: str
) -> None:
    """Raise ValueError if the features are of other images with the same names, as some of them show."""
    known = [name for name in names if features.digests.get(name)]
    for name in known[:: max(1, len(known) // IMAGES_CHECKED)]:
        try:
            content = images.read(name)
        except ValueError:
            continue  # what is not there cannot be mixed up
        if hashlib.sha256(content).hexdigest() != features.digests[name]:
            raise ValueError(
                f"{source} was made from another image called {name}; compute the features of these images."
            )


def cached_features(
    images: CaptionedImages, names: Sequence[str], encoder: Encoder, data: str
) -> tuple[Features, dict[str, str]]:
    """The features of images, from the cache where it has them; also the images left out, with the reason."""
    place = data if data == SHAPES else str(expanded(data).resolve())
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    key = re.sub(r"[^\w.-]", "-", encoder.key)
    path = cache_folder() / f"{images.name}-{digest}-{key}.features.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror}. Set BAYESRNN_CACHE to a folder that can be written."
        ) from None
    if path.exists():
        try:
            load_features(path)
        except ValueError:  # damaged: what is in the cache can be made again
            path.unlink()
    with encoding_progress(len(names)) as advance:
        found = extract(names, images.read, encoder, path, advance)
    return found.features, dict(found.skipped)


@contextmanager
def encoding_progress(images: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, for images that are being encoded."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("encoding images", total=images)
        yield lambda count: bar.advance(task, count)
