"""The language-model experiment, `bayesrnn train`. Torch is imported only inside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.tasks.language.config import LanguageModelConfig, preset
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
    from bayesrnn.tasks.language.data.corpus import Corpus
    from bayesrnn.tasks.language.evaluation.scoring import Adaptation
    from bayesrnn.tasks.language.trained import TrainedModel
    from bayesrnn.training.run import Run


class LanguageExperiment:
    """Train a language model on text, or resume its training."""

    name = "language"
    command = "train"
    summary = "Train a language model on text, or resume its training."
    run_name = "runs/DATA-PRESET-METHOD-SEED"
    config = LanguageModelConfig

    def defaults(self, given: Mapping[str, str]) -> LanguageModelConfig:
        return preset(given.get("preset", "tiny"), given.get("method"))

    def folder_name(self, config: LanguageModelConfig) -> str:
        data, preset = Path(config.data).resolve().name, preset_name(config.preset)
        return f"{data}-{preset}-{config.method}-{config.seed}"

    def prepare(self, config: LanguageModelConfig, before: Run | None) -> Prepared:
        from bayesrnn.data.download import cache_folder
        from bayesrnn.tasks.language.data.corpus import encode_corpus, load_corpus
        from bayesrnn.tasks.language.data.sources import training_text
        from bayesrnn.tasks.language.task import LanguageTask, build_method, common_name
        from bayesrnn.tasks.language.trained import VOCABULARY, read_vocabulary
        from bayesrnn.training.start import take_over

        cache = cache_folder()
        source = training_text(config.data, config.train_words, cache)
        if before:
            corpus = encode_corpus(source, read_vocabulary(before), cache)
        else:
            corpus = load_corpus(source, _vocabulary_size(config), cache)
        _check_long_enough(config, corpus)
        vocabulary = corpus.vocabulary
        method = build_method(config, len(vocabulary))

        def take_weights(run: Run) -> None:
            trained = run.load_weights(build_method(run.config, len(vocabulary)))  # pyright: ignore[reportArgumentType]
            take_over(method, trained, common_name)

        return Prepared(
            config,
            LanguageTask(config, corpus),
            method,
            {VOCABULARY: vocabulary.text()},
            data=corpus.digest,
            take_over=take_weights,
            summary=f"{config.data}: {len(corpus.train) - 1:,} words, vocabulary {len(vocabulary):,}",
        )

    def progress_text(self, metrics: dict[str, Any]) -> str:
        return f"perplexity {metrics['train_perplexity']:7.1f}"

    def epoch_line(self, metrics: dict[str, Any]) -> str:
        line = f"epoch {metrics['epoch']:3d}  lr {metrics['lr']:.3g}"
        train, valid = metrics["train_perplexity"], metrics["valid_perplexity"]
        line += f"  perplexity: train {train:8.2f}  valid {valid:8.2f}"
        return line + kl_text(metrics, "word")

    def goal_text(self, best: float) -> str:
        return f"validation perplexity {best:.2f}"

    def compare(
        self, runs: Sequence[Run], options: CompareOptions, progress: Progress
    ) -> Comparison:
        from bayesrnn.tasks.language.comparison import compare, comparison
        from bayesrnn.tasks.language.trained import trained_models

        def adaptation(model: TrainedModel) -> Adaptation:
            return model.adaptation(
                lr=options.lr,
                rare_words=options.rare_words,
                decay=options.decay,
                data=options.data,
            )

        rows = compare(
            trained_models(runs),
            data=options.data,
            samples=options.samples,
            adaptation=adaptation if options.dynamic else None,
            progress=progress,
        )
        return comparison(rows)

    def report(
        self, runs: Sequence[Run], options: ReportOptions, progress: Progress
    ) -> list[Section]:
        from bayesrnn.tasks.language.page import sections
        from bayesrnn.tasks.language.trained import trained_models

        return sections(trained_models(runs), options, progress)


def _vocabulary_size(config: LanguageModelConfig) -> int | None:
    if config.vocabulary:
        return config.vocabulary
    return 2500 if config.data == "pydocs" else None


def _check_long_enough(config: LanguageModelConfig, corpus: Corpus) -> None:
    words = len(corpus.train) - 1
    if words < 2 * config.batch_size:
        raise ValueError(
            f"{config.data} has {words} training words, too few for {config.batch_size} streams; "
            "give more text, or lower --batch-size."
        )


EXPERIMENT = LanguageExperiment()
