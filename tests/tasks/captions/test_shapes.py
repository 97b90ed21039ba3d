"""Drawn scenes, their captions, and the network that encodes them."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image

from bayesrnn.tasks.captions.data.captioned import SPLITS
from bayesrnn.tasks.captions.data.shapes import (
    COLOURS,
    KINDS,
    PIXELS,
    RELATIONS,
    SHAPES,
    SIZES,
    is_right,
    load_shapes,
    make_scene,
    open_scene,
    scene_name,
    true_sentences,
)
from bayesrnn.tasks.captions.encoders.shapes_net import ShapesNet, load_shapes_net

SCENES = {name: make_scene(name) for name in (scene_name("train", index) for index in range(1000))}
SIZE_WORDS = {"small": "large", "little": "big", "large": "small", "big": "little"}
OPPOSITES = {"above": "below", "over": "under", "below": "above", "under": "over"}
OPPOSITES |= {"left": "right", "right": "left"}
NUMBERS = {"two": "three", "three": "two"}


@pytest.fixture(scope="module")
def shapes():
    return load_shapes(train=200, held_out=50)


def test_splits_and_names(shapes):
    assert shapes.name == "shapes"
    assert {split: len(scenes) for split, scenes in shapes.splits.items()} == dict(
        zip(SPLITS, (200, 50, 50), strict=True)
    )
    assert shapes.splits["train"][12].image == "train-00012.png"
    with pytest.raises(ValueError, match="every split needs a scene"):
        load_shapes(train=0)


def test_a_scene_depends_on_seed_split_and_index_only(shapes):
    again, other = (load_shapes(seed, train=20, held_out=10) for seed in (0, 1))
    for split, scenes in again.splits.items():
        assert scenes == shapes.splits[split][: len(scenes)]
        assert scenes != other.splits[split]
        for scene in scenes:
            assert again.read(scene.image) == shapes.read(scene.image)
    pictures = {
        data.read(scene.image)
        for data in (again, other)
        for scenes in data.splits.values()
        for scene in scenes
    }
    assert len(pictures) == 80


def test_scenes_stay_as_they_are():
    """Trained models and the shipped encoder belong to these scenes: a changed draw must not go unnoticed."""
    scene = make_scene("test-00000.png")
    assert (scene.kind, scene.relation) == ("one", None)
    assert [thing.look for thing in scene.objects] == [("large", "red", "star")]
    assert scene.objects[0].x == pytest.approx(33.64727217067538)


def test_read_gives_a_file_and_scenes_beyond_the_sizes(shapes):
    with Image.open(io.BytesIO(shapes.read("valid-123456.png"))) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (PIXELS, PIXELS))
        assert image.tobytes() == open_scene("valid-123456.png").tobytes()


@pytest.mark.parametrize(
    "name",
    ["", "train-00012", "train-12.png", "train-000012.png", "dev-00012.png", "../train-00012.png",
     "train-00012.png\n", "train--0001.png"],
)  # fmt: skip
def test_a_name_that_is_no_scene(shapes, name):
    with pytest.raises(ValueError, match="is no scene") as caught:
        shapes.read(name)
    assert "\n" not in str(caught.value)


def test_every_kind_relation_and_look_occurs():
    scenes = SCENES.values()
    assert {scene.kind for scene in scenes} == set(KINDS)
    assert {scene.relation for scene in scenes} == {None, *RELATIONS}
    counts = Counter((scene.kind, len(scene.objects)) for scene in scenes)
    assert set(counts) == {("one", 1), ("equal", 2), ("equal", 3), ("related", 2)}
    assert min(counts.values()) > 80
    looks = {thing.look for scene in scenes for thing in scene.objects}
    assert len(looks) == len(SIZES) * len(COLOURS) * len(SHAPES)


def test_equal_objects_look_equal_and_related_ones_differ():
    for scene in SCENES.values():
        looks = {thing.look for thing in scene.objects}
        assert len(looks) == (2 if scene.kind == "related" else 1)
        assert (scene.relation is not None) == (scene.kind == "related")


def test_objects_are_inside_and_apart_and_sizes_differ():
    for scene in SCENES.values():
        for thing in scene.objects:
            low, high = SIZES[thing.size]
            assert low <= thing.radius <= high
            for centre in (thing.x, thing.y):
                assert thing.radius + 1 <= centre <= PIXELS - thing.radius - 1
        for a, b in combinations(scene.objects, 2):
            assert max(abs(a.x - b.x), abs(a.y - b.y)) >= a.radius + b.radius + 3
    assert SIZES["large"][0] > 1.5 * SIZES["small"][1]


def test_relations_are_clear():
    for scene in SCENES.values():
        if scene.relation:
            first, second = scene.objects
            across, down = second.x - first.x, second.y - first.y
            if scene.relation == "above":
                assert down >= 2 * abs(across)
            else:
                assert across >= 2 * abs(down)


def test_the_drawing_has_the_objects_and_nothing_else():
    rows, columns = np.mgrid[:PIXELS, :PIXELS] + 0.5
    for name, scene in list(SCENES.items())[:200]:
        pixels = np.asarray(open_scene(name)).astype(int)
        elsewhere = np.ones((PIXELS, PIXELS), bool)
        for thing in scene.objects:
            shade = pixels[int(thing.y), int(thing.x)]
            assert tuple(shade) == thing.shade
            nearest = min(COLOURS, key=lambda c: math.dist(COLOURS[c], shade))
            assert nearest == thing.colour
            box = np.maximum(abs(columns - thing.x), abs(rows - thing.y)) < thing.radius + 1
            elsewhere &= ~box
            # The share of its square that a shape fills tells the shapes apart.
            covered = (pixels[box] - scene.background) @ (shade - scene.background)
            area = covered.sum() / ((shade - scene.background) ** 2).sum()
            share = area / (2 * thing.radius) ** 2
            expected = {"circle": math.pi / 4, "square": 1.0, "triangle": 0.5, "star": 0.31}
            assert share == pytest.approx(expected[thing.shape], rel=0.15)
        assert (pixels[elsewhere] == scene.background).all()


def test_five_different_captions_are_true(shapes):
    for scenes in shapes.splits.values():
        for scene in scenes:
            sentences = true_sentences(make_scene(scene.image))
            assert len(set(scene.captions)) == 5
            for caption in scene.captions:
                assert caption.removesuffix(".") in sentences
                assert is_right(caption, scene.image)


def test_one_caption_of_a_relation_starts_from_the_second_object(shapes):
    for scene in shapes.splits["train"]:
        relation = make_scene(scene.image).relation
        if relation:
            words = {"above": {"below", "under"}, "left": {"right"}}[relation]
            assert sum(bool(words & set(c.split())) for c in scene.captions) == 1


def test_captions_are_as_varied_as_the_grammar(shapes):
    """Beside the names of looks, which another test covers, every word is in some caption."""
    words = {word for scene in SCENES.values() for s in true_sentences(scene) for word in s.split()}
    captions = [c for scene in shapes.splits["train"] for c in scene.captions]
    assert {word for caption in captions for word in caption.rstrip(".").split()} == words
    assert len(words) == 38


def test_sentences_of_a_scene_by_hand():
    (name,) = [n for n, s in list(SCENES.items())[:40] if s.kind == "one"][:1]
    size, colour, shape = SCENES[name].objects[0].look
    sizes = {"small": ("small", "little"), "large": ("large", "big")}[size]
    starts = ("", "there is ", "a picture of ", "an image of ", "we see ")
    assert true_sentences(SCENES[name]) == {
        f"{start}a {word} {colour} {shape}" for start in starts for word in sizes
    }


def test_a_relation_is_said_from_either_object():
    for scene in SCENES.values():
        if scene.relation:
            a, b = (" ".join(("a", *thing.look)) for thing in scene.objects)
            said = true_sentences(scene)
            there, back = {
                "above": ("above", "below"),
                "left": ("to the left of", "to the right of"),
            }[scene.relation]
            assert {f"{a} {there} {b}", f"{b} {back} {a}", f"{b} is {back} {a}"} <= said
            assert not {f"{b} {there} {a}", f"{a} {back} {b}"} & said


@pytest.mark.parametrize("wrong", ["colour", "size", "shape", "count", "relation"])
def test_one_wrong_word_is_not_right(shapes, wrong):
    colours = dict(zip(COLOURS, [*list(COLOURS)[1:], "red"], strict=True))
    kinds = dict(zip(SHAPES, [*SHAPES[1:], "circle"], strict=True))
    kinds |= {f"{a}s": f"{b}s" for a, b in kinds.items()}
    others = {
        "colour": colours,
        "size": SIZE_WORDS,
        "shape": kinds,
        "count": NUMBERS,
        "relation": OPPOSITES,
    }[wrong]
    tried = 0
    for scene in shapes.splits["train"]:
        for caption in scene.captions:
            words = caption.rstrip(".").split()
            for place, word in enumerate(words):
                if word in others:
                    changed = [*words[:place], others[word], *words[place + 1 :]]
                    assert not is_right(" ".join(changed), scene.image)
                    tried += 1
    assert tried > 100


def test_case_spaces_and_a_full_stop_do_not_matter_but_words_do(shapes):
    scene = shapes.splits["test"][0]
    caption = scene.captions[0].removesuffix(".")
    for same in (caption, f"  {caption.upper()} . ", caption.replace(" ", "  ") + ".\n"):
        assert is_right(same, scene.image)
    for other in ("", ".", f"{caption} {caption}", caption[:-1], f"{caption} ..", f". {caption}"):
        assert not is_right(other, scene.image)
    with pytest.raises(ValueError, match="is no scene"):
        is_right(caption, "nothing.png")


def test_is_right_uses_the_seed():
    for scene in load_shapes(3, train=20, held_out=1).splits["train"]:
        assert is_right(scene.captions[0], scene.image, 3)
    wrong = [is_right(s.captions[0], s.image) for s in load_shapes(3, train=20).splits["train"]]
    assert not all(wrong)


def test_the_module_needs_neither_pillow_nor_torch():
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from bayesrnn.tasks.captions.data.shapes import load_shapes\n"
        "data = load_shapes(train=1, held_out=1)\n"
        "assert 'torch' not in sys.modules\n"
        "try: data.read('train-00000.png')\n"
        "except ValueError as error: assert 'pip install' in str(error)\n"
        "else: sys.exit('drawn without Pillow')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shipped_net_is_frozen():
    net = load_shapes_net()
    assert not any(module.training for module in net.modules())
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in net.parameters())
    # Nothing but the network itself: the heads it was trained with are gone.
    assert net.state_dict().keys() == ShapesNet().state_dict().keys()
    assert net(torch.rand(2, 3, PIXELS, PIXELS)).shape == (2, ShapesNet.features)
    again = load_shapes_net().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in net.state_dict().items())


def test_features_do_not_depend_on_the_batch():
    net, x = load_shapes_net(), _pixels([scene_name("valid", i) for i in range(4)])
    torch.testing.assert_close(net(x)[1:2], net(x[1:2]), rtol=1e-4, atol=1e-4)


def test_a_linear_read_out_of_the_features():
    """Least squares on 600 scenes names what 200 others show; features of random weights do far worse."""
    names = [scene_name("train", index) for index in range(800)]
    x = _pixels(names)
    torch.manual_seed(0)
    for attribute in ("kind", "relation", "count"):
        said = [_attribute(SCENES[name], attribute) for name in names]
        assert _read_out(load_shapes_net()(x), said) > 0.92
        assert _read_out(ShapesNet().eval().requires_grad_(False)(x), said) < 0.75


def _attribute(scene, attribute):
    return len(scene.objects) if attribute == "count" else getattr(scene, attribute)


def _pixels(names):
    pixels = np.stack([np.asarray(open_scene(name)) for name in names])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def _read_out(features, said, fitted=600):
    """The share of the scenes after the first `fitted` that a linear map, fitted to those, gets right."""
    values = sorted(set(said), key=str)
    y = torch.tensor([values.index(value) for value in said])
    x = torch.cat([features, torch.ones(len(features), 1)], -1)
    target = torch.nn.functional.one_hot(y).float()
    weight = torch.linalg.lstsq(x[:fitted], target[:fitted], driver="gelsd").solution
    return ((x[fitted:] @ weight).argmax(-1) == y[fitted:]).float().mean().item()
