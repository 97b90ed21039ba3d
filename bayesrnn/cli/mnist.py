"""`bayesrnn mnist`: train a classifier of handwritten digits, or go on training it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from bayesrnn.cli.options import TrainingOptions, option_value
from bayesrnn.config import MnistConfig


@dataclass(frozen=True)
class Mnist(TrainingOptions):
    """Train a classifier of digits, recurrent in nothing: perceptron or convolutions."""

    config: Annotated[OmitArgPrefixes[MnistConfig], arg(name="")] = field(
        default_factory=MnistConfig
    )
    run_folder: Annotated[Path | None, arg(name="run")] = None
    """Folder of the run; runs/DATA-NETWORK-METHOD-SEED if not given."""

    @staticmethod
    def defaults(arguments: list[str]) -> Mnist:
        """The defaults of all options: the resumed run's, or those of the method named."""
        folder = option_value(arguments, "--run")
        if "--resume" in arguments and folder is not None:
            from bayesrnn.training.run import DigitsRun

            return Mnist(config=DigitsRun.open(Path(folder)).config)
        return Mnist(config=MnistConfig.for_method(option_value(arguments, "--method") or "bbb"))

    def run(self) -> None:
        from bayesrnn.cli.following import check_same_settings, follow
        from bayesrnn.data.digits import load_digits
        from bayesrnn.training.loop import Trainer
        from bayesrnn.training.run import DigitsRun
        from bayesrnn.training.task import DigitsTask

        config = self.config
        folder = self.run_folder or Path("runs") / _name(config)
        existing = DigitsRun.open(folder) if self.resume else None
        digits = load_digits(config.data, config.valid, white=config.white)
        pixels = digits.train.x.shape[-1]
        if config.pixels not in (0, pixels):
            raise ValueError(
                f"pixels = {config.pixels}, but the pictures of {config.data} have {pixels} a side."
            )
        config = replace(config, pixels=pixels)
        if existing:
            check_same_settings(existing.config, config)
            run = replace(existing, config=config)
        else:
            run = DigitsRun.create(folder, config)
        trainer = Trainer(
            run, DigitsTask(config, digits), checkpoint_minutes=self.checkpoint_minutes
        )
        if existing:
            trainer.resume()
            run.write_config()
        follow(
            trainer,
            command="mnist",
            describe=lambda metrics: f"{metrics['train_nats']:.4f} nats",
            epoch_line=_epoch_line,
            tensorboard=self.tensorboard,
            as_json=self.json,
        )
        if not self.json:
            best, epoch = trainer.best
            print(f"best validation error {best:.2%}, in epoch {epoch}")
            print(f"wrote {folder}: weights.safetensors, metrics.jsonl, config.toml")


def _epoch_line(metrics: dict[str, Any]) -> str:
    line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}  train {metrics['train_nats']:.4f} nats"
    line += f"  valid {metrics['valid_nats']:.4f} nats, error {metrics['valid_error']:.2%}"
    if metrics["kl_per_example"] is not None:
        line += f"  KL {metrics['kl_per_example']:.3f} nats/example"
    if metrics["kl_theta_per_example"]:
        line += f"  sharpening {metrics['kl_theta_per_example']:.4f}"
    return line


def _name(config: MnistConfig) -> str:
    return f"{Path(config.data).resolve().name}-{config.network}-{config.method}-{config.seed}"
