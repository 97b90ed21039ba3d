"""The settings of a run on digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bayesrnn import methods
from bayesrnn.training.settings import Settings, check_choice


@dataclass(frozen=True)
class DigitsConfig(Settings):
    """The hyper-parameters of a run on digits."""

    data: str = "digits"
    """Images to train on: digits, scikit-learn's 8x8 images, or a folder with MNIST's IDX files."""
    method: str = "bbb"
    """Training method: sgd, dropout, bbb or sharpened."""
    network: str = "perceptron"
    """Network: perceptron, or lenet (convolutional)."""
    hidden: int = 400
    """Number of units in each hidden layer."""
    layers: int = 2
    """Number of hidden layers of the perceptron."""
    pixels: int = 0
    """Height and width of the images in pixels; 0 to take them from the data."""
    white: float = 2.0
    """Value of a white pixel; black is 0. Blundell et al. use 255/126."""
    valid: int = 0
    """Number of training examples held out for validation; 0 for a sixth of them."""
    kl_weighting: str = "geometric"
    """Shares of the KL over the minibatches: uniform, or geometric (Blundell et al.)."""
    epochs: int = 80
    batch_size: int = 256
    lr: float = 0.3
    lr_decay: float = 0.97
    lr_hold: int = 1
    clip: float = 1000.0
    dropout: float = 0.5
    pi: float = 0.5
    log_sigma1: float = 0.0
    log_sigma2: float = -6.0
    sigma_init: float = 0.01
    sigma0: float = 0.005
    kappa_init: float = 1.0

    TASK: ClassVar[str] = "mnist"
    SIZES: ClassVar[tuple[str, ...]] = ("network", "hidden", "layers", "pixels")
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **Settings.CHOICES,
        "network": ("perceptron", "lenet"),
        "kl_weighting": ("uniform", "geometric"),
    }
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_1, "hidden", "layers")
    AT_LEAST_0: ClassVar[tuple[str, ...]] = (*Settings.AT_LEAST_0, "valid", "pixels")
    ABOVE_0: ClassVar[tuple[str, ...]] = (*Settings.ABOVE_0, "white")
    BETWEEN: ClassVar[dict[str, tuple[float, float]]] = {
        **Settings.BETWEEN,
        "hidden": (1, 2**20),
        "layers": (1, 1000),
        "pixels": (0, 10**4),
        "white": (0, 1e6),
        "valid": (0, 10**9),
    }
    BEFORE: ClassVar[dict[str, Any]] = {**Settings.BEFORE, "white": 1.0}

    @classmethod
    def for_method(cls, method: str) -> DigitsConfig:
        """The defaults for a method."""
        check_choice("method", method, methods.names(cls.TASK))
        return cls(method=method, **_OF_METHOD.get(method, {}))

    def least_weights(self, folder: Path) -> int:
        if self.network == "lenet":
            return 32 * (self.pixels // 4) ** 2 * self.hidden
        return self.pixels**2 * self.hidden + (self.layers - 1) * self.hidden**2


# With SGD the sigmas of a posterior would hardly change.
_ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 6e-3, "lr_decay": 0.94}
_OF_METHOD = {"bbb": _ADAM, "sharpened": _ADAM}
