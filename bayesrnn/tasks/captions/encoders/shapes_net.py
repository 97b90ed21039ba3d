"""A small convolutional network, trained to tell the scenes of `data/shapes.py` apart, then frozen."""

from __future__ import annotations

from importlib import resources

from torch import Tensor, nn

from bayesrnn.storage import copy_state, load_tensors

FORMAT = "bayesrnn shapes net 1"


class ShapesNet(nn.Module):
    """Images (N, 3, 64, 64) in [0, 1] to features (N, 128), each image's of mean 0 and variance 1."""

    features = 128

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(3, 16),  # (N, 16, 32, 32)
            *_convolution(16, 32),  # (N, 32, 16, 16)
            *_convolution(32, 48),  # (N, 48, 8, 8)
            *_convolution(48, 48),  # (N, 48, 4, 4)
            nn.Flatten(),  # not a mean over positions: relations are about positions
            nn.Linear(48 * 4 * 4, 160, bias=False),
            nn.BatchNorm1d(160),
            nn.ReLU(),  # which object is the first depends on the other
            nn.Linear(160, self.features),
            nn.LayerNorm(self.features, elementwise_affine=False),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def load_shapes_net() -> ShapesNet:
    """The network with the weights that are shipped, in float32, frozen."""
    file = resources.files("bayesrnn.tasks.captions.encoders").joinpath("shapes_net.safetensors")
    with resources.as_file(file) as path:
        tensors, header = load_tensors(path)
    if header.get("format") != FORMAT:
        raise ValueError(f"{file} is no {FORMAT!r}; run benchmarks/shapes_encoder.py.")
    net = ShapesNet()
    # Stored as float16; the counts of batches are integers.
    state = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    copy_state(net.state_dict(), state, str(file))
    return net.eval().requires_grad_(False)


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Half the resolution, by a stride: pooling would cost four times the work."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
