"""A language model exported to one small file: weights, config and vocabulary, without a posterior."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from bayesrnn import compact
from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.methods import Method
from bayesrnn.methods.point_estimate import PointEstimate
from bayesrnn.storage import check_state
from bayesrnn.tasks.language.config import LanguageModelConfig
from bayesrnn.tasks.language.models.word_lm import WordLM

KIND = "word-lm"


@dataclass(frozen=True)
class Exported:
    """A file written by `bayesrnn prune --export`, which most commands accept in place of a run folder."""

    path: Path
    config: LanguageModelConfig
    vocabulary: Vocabulary

    @classmethod
    def open(cls, path: Path) -> Exported:
        _, header = compact.read_with_header(path)
        if header.get("model") != KIND:
            raise ValueError(f"{path} has no language model that this version can read.")
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
        sizes = {
            "vocabulary": model.embedding.num_embeddings,
            "hidden": model.lstm.hidden_size,
            "layers": model.lstm.num_layers,
            "tied": model.out.weight is model.embedding.weight,
            "embedding": model.embedding.embedding_dim,
        }
        header = {
            "model": KIND,
            "sizes": sizes,
            "config": asdict(config),
            "vocabulary": list(vocabulary.words),
        }
        compact.write_state(path, model.state_dict(), storage, header)
        return cls(path, config, vocabulary)

    def load_method(self) -> Method:
        state, header = compact.read_with_header(self.path)
        model = WordLM(**header["sizes"])
        check_state(model.state_dict(), state, str(self.path))
        model.load_state_dict(state)
        return PointEstimate(model)
