"""`bayesrnn train`: train a language model, or go on training it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, arg

from bayesrnn.cli.options import TrainingOptions, option_value
from bayesrnn.config import Config, preset


@dataclass(frozen=True)
class Train(TrainingOptions):
    """Train a language model on text, or go on training it."""

    config: Annotated[OmitArgPrefixes[Config], arg(name="")] = field(default_factory=Config)
    run_folder: Annotated[Path | None, arg(name="run")] = None
    """Folder of the run; runs/DATA-PRESET-METHOD-SEED if not given."""

    @staticmethod
    def defaults(arguments: list[str]) -> Train:
        """The defaults of all options: the resumed run's, or those of the preset and method named."""
        folder = option_value(arguments, "--run")
        if "--resume" in arguments and folder is not None:
            return Train(config=_config_of(Path(folder)))
        name = option_value(arguments, "--preset") or "tiny"
        method = option_value(arguments, "--method") or "bbb"
        return Train(config=preset(name, method))

    def run(self) -> None:
        from bayesrnn.cli.following import check_same_settings, follow
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
            check_same_settings(existing.config, config)
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
        follow(
            trainer,
            command="train",
            describe=lambda metrics: f"perplexity {metrics['train_perplexity']:7.1f}",
            epoch_line=_epoch_line,
            tensorboard=self.tensorboard,
            as_json=self.json,
        )
        if not self.json:
            best, epoch = trainer.best
            print(f"best validation perplexity {best:.2f}, in epoch {epoch}")
            print(
                f"wrote {folder}: weights.safetensors, metrics.jsonl, config.toml, vocabulary.txt"
            )


def _config_of(folder: Path) -> Config:
    from bayesrnn.training.run import Run

    return Run.open(folder).config


def _epoch_line(metrics: dict) -> str:
    line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}"
    line += f"  train {metrics['train_perplexity']:8.2f}  valid {metrics['valid_perplexity']:8.2f}"
    if metrics["kl_per_word"] is not None:
        line += f"  KL {metrics['kl_per_word']:.3f} nats/word"
    if metrics["kl_theta_per_word"]:
        line += f"  sharpening {metrics['kl_theta_per_word']:.4f} nats/word"
    return line


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
