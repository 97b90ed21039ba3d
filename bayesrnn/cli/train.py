"""`bayesrnn train`: train a language model, or go on training it."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from bayesrnn.config import Config, preset


@dataclass(frozen=True)
class Train:
    """Train a language model on text, or go on training it."""

    config: Annotated[OmitArgPrefixes[Config], arg(name="")] = field(default_factory=Config)
    run_folder: Annotated[Path | None, arg(name="run")] = None
    """Folder of the run; runs/DATA-PRESET-METHOD-SEED if not given."""
    resume: bool = False
    """Go on with the run where it stopped, with the settings it began with."""
    checkpoint_minutes: float = 10.0
    """Also write a checkpoint every so many minutes."""
    tensorboard: bool = True
    """Write the metrics for TensorBoard too, if it is installed."""
    json: bool = False
    """Print the last epoch's metrics as JSON at the end, and nothing else."""

    @staticmethod
    def defaults(arguments: list[str]) -> Train:
        """The defaults of all options: the resumed run's, or those of the preset and method named."""
        folder = _value(arguments, "--run")
        if "--resume" in arguments and folder is not None:
            return Train(config=_config_of(Path(folder)))
        name = _value(arguments, "--preset") or "tiny"
        method = _value(arguments, "--method") or "bbb"
        return Train(config=preset(name, method))

    def run(self) -> None:
        from bayesrnn.data.corpus import cache_folder, encode_corpus, load_corpus
        from bayesrnn.data.sources import find_source
        from bayesrnn.training.loop import Trainer
        from bayesrnn.training.run import Run
        from bayesrnn.training.task import LanguageTask

        folder = self.run_folder or Path("runs") / _name(self.config)
        cache = cache_folder()
        existing = Run.open(folder) if self.resume else None
        config = self.config
        source = find_source(config.data, cache)
        if existing:
            _check_same_settings(existing.config, config)
            corpus = encode_corpus(source, existing.vocabulary, cache)
            run = replace(existing, config=config)
        else:
            corpus = load_corpus(source, _vocabulary_size(config), cache)
            _check_long_enough(config, corpus)
            run = Run.create(folder, config, corpus.vocabulary)
        task = LanguageTask(config, corpus)
        trainer = Trainer(run, task, checkpoint_minutes=self.checkpoint_minutes)
        if existing:
            trainer.resume()
            run.write_config()
        last = self._follow(trainer, run)
        if self.json:
            print(json.dumps(last or (run.read_metrics("epoch") or [{}])[-1]))
        elif trainer.stop:
            epochs, cut = trainer.position
            print(f"stopped after {epochs} epochs and {cut} steps; go on with:")
            print(f"  bayesrnn train --resume --run {folder}")
        if trainer.stop:
            sys.exit(130)
        if not self.json:
            best, epoch = trainer.best
            print(f"best validation perplexity {best:.2f}, in epoch {epoch}")
            print(
                f"wrote {folder}: weights.safetensors, metrics.jsonl, config.toml, vocabulary.txt"
            )

    def _follow(self, trainer, run) -> dict | None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        board = _board(run.folder) if self.tensorboard else None
        total, per_epoch = trainer.config.epochs * len(trainer.task), len(trainer.task)
        last = None
        columns = (TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
        signal.signal(signal.SIGINT, lambda *_: _stop(trainer))
        with Progress(
            *columns, transient=True, disable=self.json or not sys.stdout.isatty()
        ) as bar:
            epochs, cut = trainer.position
            task = bar.add_task("starting", total=total, completed=epochs * per_epoch + cut)
            for state in trainer.run():
                kl = "" if state.kl_per_item is None else f"  KL {state.kl_per_item:.3f}/word"
                perplexity = state.metrics["train_perplexity"]
                bar.update(
                    task,
                    completed=state.epoch * per_epoch + state.minibatch,
                    description=f"epoch {state.epoch + 1}  perplexity {perplexity:7.1f}{kl}",
                )
                for measured in state.measured:
                    if board is not None:
                        _log(board, measured)
                    if measured["kind"] == "epoch":
                        last = measured
                        if not self.json:
                            bar.console.print(_epoch_line(last), highlight=False, soft_wrap=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if board is not None:
            board.close()
        return last


def _config_of(folder: Path) -> Config:
    from bayesrnn.training.run import Run

    return Run.open(folder).config


def _check_same_settings(began: Config, asked: Config) -> None:
    """A resumed run may be longer, and its text may have moved; nothing else may change."""
    for field_ in fields(Config):
        before, now = getattr(began, field_.name), getattr(asked, field_.name)
        if before != now and field_.name not in ("data", "epochs", "patience"):
            option = field_.name.replace("_", "-")
            raise ValueError(
                f"--{option} {now} cannot be changed with --resume (the run began with {before}); "
                "start a new run."
            )


def _stop(trainer) -> None:
    if trainer.stop:
        raise KeyboardInterrupt
    trainer.stop = True


def _epoch_line(metrics: dict) -> str:
    line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}"
    line += f"  train {metrics['train_perplexity']:8.2f}  valid {metrics['valid_perplexity']:8.2f}"
    if metrics["kl_per_word"] is not None:
        line += f"  KL {metrics['kl_per_word']:.3f} nats/word"
    if metrics["kl_theta_per_word"]:
        line += f"  sharpening {metrics['kl_theta_per_word']:.4f} nats/word"
    return line


def _board(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard")


def _log(board, metrics: dict) -> None:
    for name, value in metrics.items():
        if isinstance(value, int | float) and name not in ("step", "epoch"):
            board.add_scalar(name, value, metrics["step"])
    board.flush()


def _name(config: Config) -> str:
    return f"{Path(config.data).resolve().name}-{config.preset}-{config.method}-{config.seed}"


def _vocabulary_size(config: Config) -> int | None:
    if config.vocabulary:
        return config.vocabulary
    return 5000 if config.data == "pydocs" else None


def _check_long_enough(config: Config, corpus) -> None:
    words = len(corpus.train) - 1
    if words < 2 * config.batch_size:
        raise ValueError(
            f"{config.data} has {words} training words, too few for {config.batch_size} streams; "
            "give more text, or lower --batch-size."
        )


def _value(arguments: list[str], option: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.split("=", 1)[1]
    return None
