"""The caption experiment, `bayesrnn captions train`. Torch is imported only inside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.tasks.captions.config import SHAPES, CaptionsConfig, preset
from bayesrnn.training.experiment import (
    CompareOptions,
    Comparison,
    Prepared,
    Progress,
    ReportOptions,
    Section,
    kl_text,
)
from bayesrnn.training.settings import preset_name

if TYPE_CHECKING:
    from bayesrnn.training.run import Run


class CaptionsExperiment:
    """Train a model that describes images, or resume its training."""

    name = "captions"
    command = "captions train"
    summary = "Train a model that describes images, or resume its training."
    run_name = "runs/DATA-PRESET-METHOD-SEED"
    config = CaptionsConfig

    def defaults(self, given: Mapping[str, str]) -> CaptionsConfig:
        suits = SHAPES if given.get("data", SHAPES) == SHAPES else "photos"
        return preset(given.get("preset", suits), given.get("method"))

    def folder_name(self, config: CaptionsConfig) -> str:
        name = SHAPES if config.data == SHAPES else Path(config.data).resolve().name
        return f"{name}-{preset_name(config.preset)}-{config.method}-{config.seed}"

    def prepare(self, config: CaptionsConfig, before: Run | None) -> Prepared:
        from bayesrnn.data.vocabulary import Vocabulary
        from bayesrnn.storage import digest
        from bayesrnn.tasks.captions.data.encoded import encode
        from bayesrnn.tasks.captions.data.tokens import ptb_tokens
        from bayesrnn.tasks.captions.sources import load
        from bayesrnn.tasks.captions.task import CaptionTask, build_method
        from bayesrnn.tasks.captions.trained import VOCABULARY, read_vocabulary
        from bayesrnn.training.start import take_over

        loaded = load(config, ("train", "valid"))
        features, splits = loaded.features, loaded.images.splits
        if before:
            vocabulary = read_vocabulary(before)
        else:
            captions = (caption for entry in splits["train"] for caption in entry.captions)
            vocabulary = Vocabulary.build(map(ptb_tokens, captions), min_count=config.min_count)
            if len(vocabulary) < 3:  # the marks of the end and of unknown words only
                raise ValueError(
                    f"no word of the training captions occurs {config.min_count} times; lower --min-count."
                )
        config = replace(
            config,
            encoder=features.encoder,
            encoder_key=features.key,
            feature_size=features.size,
        )
        train, valid = (
            encode(splits[name], features.of([entry.image for entry in splits[name]]), vocabulary)
            for name in ("train", "valid")
        )
        method = build_method(config, len(vocabulary))

        def take_weights(run: Run) -> None:
            trained = run.load_weights(build_method(run.config, len(vocabulary)))  # pyright: ignore[reportArgumentType]
            take_over(method, trained)

        words = f"{train.words:,} words, vocabulary {len(vocabulary):,}"
        return Prepared(
            config,
            CaptionTask(config, train, valid, len(vocabulary)),
            method,
            {VOCABULARY: vocabulary.text()},
            loaded.notes,
            digest({"image": train.image, "y": train.y}, {}),
            take_weights,
            f"{config.data}: {len(splits['train']):,} images, {words}",
        )

    def progress_text(self, metrics: dict[str, Any]) -> str:
        return f"perplexity {metrics['train_perplexity']:6.2f}"

    def epoch_line(self, metrics: dict[str, Any]) -> str:
        line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}"
        line += (
            f"  train {metrics['train_perplexity']:7.3f}  valid {metrics['valid_perplexity']:7.3f}"
        )
        return line + kl_text(metrics, "word")

    def goal_text(self, best: float) -> str:
        return f"validation perplexity {best:.3f}"

    def compare(
        self, runs: Sequence[Run], options: CompareOptions, progress: Progress
    ) -> Comparison:
        from bayesrnn.tasks.captions.comparison import compare, comparison
        from bayesrnn.tasks.captions.trained import notes_of, trained_captioners

        models = trained_captioners(runs, options.data)
        rows = compare(models, samples=options.samples, progress=progress)
        return comparison(rows, notes_of(models))

    def report(
        self, runs: Sequence[Run], options: ReportOptions, progress: Progress
    ) -> list[Section]:
        from bayesrnn.tasks.captions.page import sections
        from bayesrnn.tasks.captions.trained import trained_captioners

        return sections(trained_captioners(runs, options.data), options, progress)


EXPERIMENT = CaptionsExperiment()
