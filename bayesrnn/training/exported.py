"""A language model in one small file: plain weights, their config and vocabulary, no posterior."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from bayesrnn import compact
from bayesrnn.config import Config
from bayesrnn.data.corpus import Vocabulary
from bayesrnn.methods import Learner, PlainLearner
from bayesrnn.models.word_lm import WordLM
from bayesrnn.storage import check_state
from bayesrnn.training.run import Run

KIND = "word-lm"


@dataclass(frozen=True)
class Exported:
    """What `bayesrnn prune --export` writes, to be used where a run folder could be."""

    folder: Path
    """The file itself."""
    config: Config
    vocabulary: Vocabulary

    @classmethod
    def open(cls, path: Path) -> Exported:
        _, header = compact.read_with_header(path)
        if header.get("model") != KIND:
            raise ValueError(f"{path} holds no language model that this version can read.")
        config = Config.from_values(header["config"], str(path))
        return cls(path, config, Vocabulary(tuple(header["vocabulary"])))

    @classmethod
    def write(
        cls, path: Path, model: WordLM, run: Run | Exported, storage: compact.Storage
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
            "config": asdict(run.config),
            "vocabulary": list(run.vocabulary.words),
        }
        compact.write_state(path, model.state_dict(), storage, header)
        return cls(path, run.config, run.vocabulary)

    def load_learner(self) -> Learner:
        state, header = compact.read_with_header(self.folder)
        model = WordLM(**header["sizes"])
        check_state(model.state_dict(), state, str(self.folder))
        model.load_state_dict(state)
        return PlainLearner(model)


def open_run(path: Path) -> Run:
    """A run folder, where an exported file will not do."""
    if path.is_file():
        raise ValueError(f"{path} is a file; this needs the folder of a run.")
    return Run.open(path)


def open_trained(path: Path) -> Run | Exported:
    """A run folder, or a file that was exported from one."""
    return Exported.open(path) if path.is_file() else Run.open(path)
