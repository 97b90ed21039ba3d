"""Scenes of coloured shapes, drawn when they are opened, with captions from a grammar: no download."""

from __future__ import annotations

import io
import math
import random
import re
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING

from bayesrnn.tasks.captions.data.captioned import SPLITS, Captioned, CaptionedImages

if TYPE_CHECKING:
    from PIL.Image import Image

PIXELS = 64
CAPTIONS = 5

# Each channel varies by _SHADE, which leaves every shade nearest to the colour it is named after.
COLOURS = {
    "red": (205, 40, 45),
    "green": (45, 150, 60),
    "blue": (45, 85, 205),
    "yellow": (238, 215, 45),
    "purple": (135, 55, 165),
    "orange": (240, 120, 30),
}
SIZES = {"small": (5.0, 6.0), "large": (9.5, 11.0)}
"""The range of an object's radius, in pixels."""
SHAPES = ("circle", "square", "triangle", "star")
KINDS = ("one", "equal", "related")
RELATIONS = ("above", "left")


@dataclass(frozen=True)
class Shape:
    """An object: what captions say of it, and its centre, radius and shade as drawn."""

    colour: str
    size: str
    shape: str
    x: float
    y: float
    radius: float
    """Half the side of the square it is drawn in."""
    shade: tuple[int, int, int]

    @property
    def look(self) -> tuple[str, str, str]:
        return self.size, self.colour, self.shape


@dataclass(frozen=True)
class Scene:
    """One object, two or three that look equal, or two that differ and are related.

    In a relation the first object is the one above, or the one to the left.
    """

    kind: str
    objects: tuple[Shape, ...]
    relation: str | None
    background: tuple[int, int, int]


def load_shapes(seed: int = 0, *, train: int = 4000, held_out: int = 500) -> CaptionedImages:
    """The data set of a seed: `train` scenes, and `held_out` each for validation and test."""
    if train < 1 or held_out < 1:
        raise ValueError(f"train = {train}, held_out = {held_out}: every split needs a scene.")
    splits = {
        split: tuple(
            _captioned(scene_name(split, index), seed)
            for index in range(train if split == "train" else held_out)
        )
        for split in SPLITS
    }
    return CaptionedImages(
        "shapes", splits, partial(read_scene, seed=seed), is_right=partial(is_right, seed=seed)
    )


def scene_name(split: str, index: int) -> str:
    """The name of a scene's image, such as train-00012.png."""
    return f"{split}-{index:05d}.png"


def read_scene(name: str, seed: int = 0) -> bytes:
    """The content of a scene's PNG file, which exists only when it is asked for."""
    content = io.BytesIO()
    open_scene(name, seed).save(content, "PNG")
    return content.getvalue()


def open_scene(name: str, seed: int = 0) -> Image:
    """The picture of a scene, 64x64 in RGB; ValueError for a name that is no scene."""
    return draw(make_scene(name, seed))


def make_scene(name: str, seed: int = 0) -> Scene:
    """A scene by its name; it depends on the name and the seed only."""
    match = _NAME.fullmatch(name)
    if match is None or name != scene_name(match[1], int(match[2])):
        raise ValueError(f"{name!r} is no scene; scenes have names such as train-00012.png.")
    # Seeded by a string, which Python hashes the same way on every machine.
    rng = random.Random(f"shapes {seed} {name}")
    kind = rng.choices(KINDS, (1, 1, 2))[0]
    if kind == "related":
        relation = rng.choice(RELATIONS)
        looks = rng.sample(_LOOKS, 2)
    else:
        relation = None
        looks = [rng.choice(_LOOKS)] * (1 if kind == "one" else rng.choice((2, 3)))
    shades = [_jittered(COLOURS[colour], _SHADE, rng) for _, colour, _ in looks]
    objects = tuple(
        Shape(colour, size, shape, x, y, radius, shade)
        for (size, colour, shape), (x, y, radius), shade in zip(
            looks, _places([size for size, _, _ in looks], relation, rng), shades, strict=True
        )
    )
    return Scene(kind, objects, relation, _jittered(_BACKGROUND, 10, rng))


def draw(scene: Scene) -> Image:
    """The scene as an RGB image, antialiased."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise ValueError("drawing scenes needs Pillow: pip install 'bayesrnn[captions]'.") from None
    image = Image.new("RGB", (PIXELS * _FINER, PIXELS * _FINER), scene.background)
    pen = ImageDraw.Draw(image)
    for thing in scene.objects:
        if thing.shape == "circle":
            centre, radius = (thing.x * _FINER, thing.y * _FINER), thing.radius * _FINER
            pen.circle(centre, radius, fill=thing.shade)
        else:
            corners = [
                ((thing.x + dx * thing.radius) * _FINER, (thing.y + dy * thing.radius) * _FINER)
                for dx, dy in _CORNERS[thing.shape]
            ]
            pen.polygon(corners, fill=thing.shade)
    return image.reduce(_FINER)


def true_sentences(scene: Scene) -> frozenset[str]:
    """All sentences of the grammar that are true of the scene: lower-case words without punctuation."""
    return frozenset(sentence for which in _sentences(scene) for sentence in which)


def is_right(caption: str, name: str, seed: int = 0) -> bool:
    """Whether a caption is a true sentence of the named scene, whatever its case, spaces and full stop."""
    words = " ".join(caption.lower().split()).removesuffix(".").rstrip()
    return words in true_sentences(make_scene(name, seed))


_NAME = re.compile(rf"({'|'.join(SPLITS)})-([0-9]{{5,}})\.png")
_LOOKS = tuple(product(SIZES, COLOURS, SHAPES))
_BACKGROUND = (238, 238, 238)
_SHADE = 15
_FINER = 4  # drawn this many times larger, then reduced
_MARGIN = 1.0  # pixels between an object and the edge, at least
_GAP = 3.0  # pixels between two objects, at least

_SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}
_RELATION_WORDS = {
    "above": (("above", "over"), ("below", "under")),
    "left": (("to the left of", "left of"), ("to the right of", "right of")),
}

# The corners of a shape of radius 1; y points down.
_CORNERS = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle": ((0, -1), (1, 1), (-1, 1)),
    "star": tuple(
        (length * math.sin(turn * math.pi / 5), -length * math.cos(turn * math.pi / 5))
        for turn in range(10)
        for length in ((1.0, 0.42)[turn % 2],)
    ),
}


def _captioned(name: str, seed: int) -> Captioned:
    """A scene with its captions, all different; of a relation, one is said from the second object.

    If both objects were as likely to come first, the likeliest next word would often be the other object's.
    """
    rng = random.Random(f"captions {seed} {name}")
    usual, *others = _sentences(make_scene(name, seed))
    chosen = rng.sample(usual, CAPTIONS - len(others)) + [rng.choice(other) for other in others]
    rng.shuffle(chosen)
    return Captioned(name, tuple(f"{sentence}." for sentence in chosen))


def _sentences(scene: Scene) -> list[list[str]]:
    """The true sentences; of a relation, those from the first object, then those from the second."""
    if scene.relation is None:
        phrases = _phrases(scene.objects[0], len(scene.objects))
        starts = _starts(len(scene.objects) > 1)
        return [[f"{start}{phrase}" for start in starts for phrase in phrases]]
    first, second = (_phrases(thing) for thing in scene.objects)
    forward, backward = _RELATION_WORDS[scene.relation]
    sides = [product(first, forward, second), product(second, backward, first)]
    return [
        [
            sentence
            for subject, relation, other in side
            for sentence in (
                *(f"{start}{subject} {relation} {other}" for start in _starts(False)),
                f"{subject} is {relation} {other}",
            )
        ]
        for side in sides
    ]


def _starts(many: bool) -> tuple[str, ...]:
    return "", "there are " if many else "there is ", "a picture of ", "an image of ", "we see "


def _phrases(thing: Shape, count: int = 1) -> tuple[str, ...]:
    number, ending = ("a", "two", "three")[count - 1], "s" if count > 1 else ""
    return tuple(
        f"{number} {size} {thing.colour} {thing.shape}{ending}" for size in _SIZE_WORDS[thing.size]
    )


def _places(
    sizes: list[str], relation: str | None, rng: random.Random
) -> list[tuple[float, float, float]]:
    """Centres and radii (x, y, radius), drawn again until no objects touch and the relation is clear."""
    while True:
        places = []
        for size in sizes:
            radius = rng.uniform(*SIZES[size])
            inside = radius + _MARGIN, PIXELS - radius - _MARGIN
            places.append((rng.uniform(*inside), rng.uniform(*inside), radius))
        if all(_apart(a, b) for a, b in combinations(places, 2)) and (
            relation is None or _clear(relation, *places)
        ):
            return places


def _apart(a: tuple[float, float, float], b: tuple[float, float, float]) -> bool:
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) >= a[2] + b[2] + _GAP


def _clear(
    relation: str, first: tuple[float, float, float], second: tuple[float, float, float]
) -> bool:
    """Whether `first` is above, or to the left of, `second`, by at least twice the offset across."""
    across, down = second[0] - first[0], second[1] - first[1]
    along, aside = (down, across) if relation == "above" else (across, down)
    return along >= 2 * abs(aside)


def _jittered(
    colour: tuple[int, int, int], amount: int, rng: random.Random
) -> tuple[int, int, int]:
    red, green, blue = (channel + rng.randint(-amount, amount) for channel in colour)
    return min(red, 255), min(green, 255), min(blue, 255)
