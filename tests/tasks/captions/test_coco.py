"""Captions in the format of MSCOCO: what is read, what is left out and counted, what is refused."""

from __future__ import annotations

import json

import pytest

from bayesrnn.tasks.captions.data.captioned import Captioned
from bayesrnn.tasks.captions.data.coco import load_coco


def _write(folder, split, images, annotations):
    content = {
        "images": [{"id": number, "file_name": name} for number, name in images],
        "annotations": [
            {"id": row, "image_id": image, "caption": text}
            for row, (image, text) in enumerate(annotations)
        ],
    }
    (folder / f"captions_{split}.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / "images" / name).write_bytes(name.encode())
    _write(
        tmp_path,
        "train",
        [(1, "a.jpg"), (2, "b.jpg")],
        [(2, "A dog ."), (1, "A cat."), (2, "Dogs!")],
    )
    _write(tmp_path, "val", [(3, "c.jpg")], [(3, "a bird")])
    _write(tmp_path, "test", [(3, "c.jpg")], [(3, "a bird")])
    return tmp_path


def test_captions_by_image_in_the_order_of_the_file(folder):
    data = load_coco(folder)
    assert data.splits["train"] == (
        Captioned("a.jpg", ("A cat.",), 1),
        Captioned("b.jpg", ("A dog .", "Dogs!"), 2),
    )
    assert data.splits["valid"] == data.splits["test"] == (Captioned("c.jpg", ("a bird",), 3),)
    assert data.read("b.jpg") == b"b.jpg"
    assert data.skipped == ()
    assert data.name == folder.name


def test_a_data_set_without_a_test_split(folder):
    (folder / "captions_test.json").unlink()
    assert set(load_coco(folder, ("train", "valid")).splits) == {"train", "valid"}
    with pytest.raises(ValueError, match="has no captions_test.json"):
        load_coco(folder)


def test_only_the_splits_asked_for_are_read(folder):
    (folder / "captions_train.json").unlink()
    (folder / "captions_val.json").write_text("{")
    assert set(load_coco(folder, ("test",)).splits) == {"test"}


def test_ids_may_be_numbers_here_and_texts_there_but_not_of_two_images(folder):
    _write(folder, "val", [("3", "c.jpg")], [(3, "a bird")])
    assert load_coco(folder).splits["valid"] == (Captioned("c.jpg", ("a bird",), "3"),)
    _write(folder, "val", [(3, "c.jpg"), (3, "a.jpg")], [(3, "a bird")])
    with pytest.raises(ValueError, match="two images have the id 3"):
        load_coco(folder)
    # One file under two ids is one image.
    _write(folder, "val", [(3, "c.jpg"), (4, "c.jpg")], [(3, "a bird"), (4, "a gull")])
    assert load_coco(folder).splits["valid"] == (Captioned("c.jpg", ("a bird", "a gull"), 3),)


def test_what_is_left_out_is_counted(folder):
    _write(
        folder,
        "train",
        [(1, "a.jpg"), (2, "b.jpg"), (4, "gone.jpg"), (5, "c.jpg")],
        [
            (1, "A cat."),
            (1, "  "),
            (9, "of nothing"),
            (4, "It is gone."),
            (2, "A dog."),
            (2, ". . ."),
            (2, "far " * 101),
        ],
    )
    data = load_coco(folder)
    assert [entry.image for entry in data.splits["train"]] == ["a.jpg", "b.jpg"]
    assert data.skipped == (
        "captions_train.json: left out captions of images that are not listed: 1",
        "captions_train.json: left out captions without words: 2",
        "captions_train.json: left out captions of more than 100 words: 1",
        "captions_train.json: left out images without a caption: 1, such as c.jpg",
        "captions_train.json: left out images that are not in images/: 1, such as gone.jpg",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ("{}", "no list 'images'"),
        ('{"images": []}', "no list 'annotations'"),
        ('{"images": [7], "annotations": []}', "an entry of 'images' has no"),
        ('{"images": [{"id": 1}], "annotations": []}', "no 'file_name' that is a text"),
        ('{"images": [{"id": true, "file_name": "a.jpg"}], "annotations": []}', "no 'id'"),
        ('{"images": [], "annotations": [{"image_id": 1}]}', "no 'caption'"),
        ('{"images": [], "annotations": []}', "has no image with a caption"),
        (
            '{"images": [{"id": 1, "file_name": "../../etc/passwd"}], "annotations": []}',
            "not one inside the folder",
        ),
        (
            '{"images": [{"id": 1, "file_name": "/etc/passwd"}], "annotations": []}',
            "not one inside the folder",
        ),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_annotations_in_another_format(folder, content, message):
    (folder / "captions_val.json").write_text(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_coco(folder)
    assert "captions_val.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_parts(folder, tmp_path):
    (folder / "captions_val.json").unlink()
    with pytest.raises(ValueError, match="has no captions_val.json"):
        load_coco(folder)
    with pytest.raises(ValueError, match="has no folder images"):
        load_coco(tmp_path / "images")
