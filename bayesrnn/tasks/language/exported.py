"""A language model exported to one small file: weights or a posterior, config and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesrnn import compact
from bayesrnn.data.vocabulary import END, UNKNOWN, Vocabulary
from bayesrnn.methods import Method
from bayesrnn.methods.bbb import BayesByBackprop
from bayesrnn.methods.point_estimate import PointEstimate
from bayesrnn.persistence import from_state, prior_tensors
from bayesrnn.posterior import Posterior
from bayesrnn.storage import check_header, check_state
from bayesrnn.tasks.language.config import LanguageModelConfig
from bayesrnn.tasks.language.models.word_lm import WordLM

KIND = "word-lm"
_SCHEMA = {"sizes": dict, "config": dict, "vocabulary": list, "posterior?": dict}
_SIZES = {"vocabulary": int, "hidden": int, "layers": int, "tied": bool, "embedding": int}


@dataclass(frozen=True)
class Exported:
    """A file written by `bayesrnn prune --export`, which most commands accept in place of a run folder."""

    path: Path
    config: LanguageModelConfig
    vocabulary: Vocabulary

    @classmethod
    def open(cls, path: Path) -> Exported:
        state, header = compact.read_with_header(path)
        if header.get("model") != KIND:
            raise ValueError(f"{path} has no language model that this version can read.")
        check_header(header, _SCHEMA, str(path))
        _check_sizes(header, state, str(path))
        config = LanguageModelConfig.from_values(header["config"], str(path))
        return cls(path, config, Vocabulary(tuple(header["vocabulary"])))

    @classmethod
    def write(
        cls,
        path: Path,
        model: WordLM,
        config: LanguageModelConfig,
        vocabulary: Vocabulary,
        storage: compact.Storage,
    ) -> Exported:
        """Write the weights of a model."""
        return cls._write(path, model, model.state_dict(), config, vocabulary, storage, {})

    @classmethod
    def write_posterior(
        cls,
        path: Path,
        posterior: Posterior,
        kept: Mapping[str, Tensor],
        config: LanguageModelConfig,
        vocabulary: Vocabulary,
        storage: compact.Storage,
    ) -> Exported:
        """Write a posterior whose means are zero where `kept`, masks by name, is not; sigma stays."""
        model = posterior.plain_model()
        assert isinstance(model, WordLM)
        state = {**posterior.state_dict(), **prior_tensors(posterior)}
        pruned = {f"mu.{name}": state[f"mu.{name}"] * keep for name, keep in kept.items()}
        header = {"posterior": posterior.header()}
        return cls._write(path, model, state | pruned, config, vocabulary, storage, header)

    @classmethod
    def _write(
        cls,
        path: Path,
        model: WordLM,
        state: Mapping[str, Tensor],
        config: LanguageModelConfig,
        vocabulary: Vocabulary,
        storage: compact.Storage,
        header: Mapping[str, Any],
    ) -> Exported:
        sizes = {
            "vocabulary": model.embedding.num_embeddings,
            "hidden": model.lstm.hidden_size,
            "layers": model.lstm.num_layers,
            "tied": model.out.weight is model.embedding.weight,
            "embedding": model.embedding.embedding_dim,
        }
        own = {
            "model": KIND,
            "sizes": sizes,
            "config": asdict(config),
            "vocabulary": list(vocabulary.words),
        }
        compact.write_state(path, state, storage, {**header, **own})
        return cls(path, config, vocabulary)

    def load_method(self) -> Method:
        state, header = compact.read_with_header(self.path)
        check_header(header, _SCHEMA, str(self.path))
        _check_sizes(header, state, str(self.path))
        model = WordLM(**header["sizes"])
        if "posterior" in header:
            posterior = from_state(
                Posterior, state, header["posterior"], model, source=str(self.path)
            )
            return BayesByBackprop(posterior)
        check_state(model.state_dict(), state, str(self.path))
        model.load_state_dict(state)
        return PointEstimate(model)


def _check_sizes(header: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError unless the sizes in the header are those of the weights, and of the vocabulary."""
    sizes, words = header["sizes"], header["vocabulary"]
    check_header(sizes, _SIZES, source)
    if sizes.keys() != _SIZES.keys():
        raise ValueError(f"{source} is damaged: its header has sizes that no model has.")
    weights = {name.removeprefix("mu."): tensor for name, tensor in state.items()}
    rows, columns = (tuple(weights[n].shape) if n in weights else () for n in _SIZED)
    layers = sum(name.startswith("lstm.weight_hh_l") for name in weights)
    hidden = sizes["hidden"]
    found = (rows, columns, layers, len(words))
    right = ((len(words), sizes["embedding"]), (4 * hidden, hidden), sizes["layers"])
    if found != (*right, sizes["vocabulary"]):
        raise ValueError(
            f"{source} is damaged: the sizes in its header are not those of its weights."
        )
    if UNKNOWN not in words or END not in words or len(set(words)) < len(words):
        raise ValueError(
            f"{source} is damaged: its vocabulary lacks {UNKNOWN} or {END}, or repeats a word."
        )


_SIZED = ("embedding.weight", "lstm.weight_hh_l0")
