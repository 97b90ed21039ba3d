"""The uncertainty benchmark for your own models: an n-gram model, and one from Hugging Face.

    python examples/uncertainty.py --steps 300

A model needs one method, `next_word_log_probs(tokens, state)`. The transformer is built from a config and
trained here, so nothing is downloaded. Requires `pip install transformers`.
"""

import argparse

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from bayesrnn.data.download import cache_folder
from bayesrnn.tasks.language.data.corpus import load_corpus
from bayesrnn.tasks.language.data.pydocs import PyDocs
from bayesrnn.tasks.language.evaluation.uncertainty import (
    Contender,
    Text,
    add_noise,
    benchmark,
    reverse,
    shuffle,
)
from bayesrnn.tasks.language.models.ngram import NGram
from bayesrnn.tasks.language.uncertainty_study import render_gaps


class HuggingFace:
    """A causal language model of the transformers library; its state is the most recent words."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        self.model = model.eval()
        self.context = model.config.n_positions

    def next_word_log_probs(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = []
        for piece in tokens.split(self.context // 2):  # (T, N), time first
            seen = piece if state is None else torch.cat([state, piece])
            logits = self.model(input_ids=seen.T.contiguous()).logits  # (N, T, V)
            parts.append(logits[:, -len(piece) :].log_softmax(-1).transpose(0, 1))
            state = seen[-(self.context // 2) :]
        assert state is not None
        return torch.cat(parts), state


def train(model: GPT2LMHeadModel, tokens: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    length = model.config.n_positions
    for _ in range(steps):
        starts = torch.randint(len(tokens) - length, (16,))
        batch = torch.stack([tokens[s : s + length] for s in starts]).long()
        logits = model(input_ids=batch[:, :-1]).logits  # (N, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="training steps of the transformer")
    parser.add_argument("--words", type=int, default=4000, help="words of test text")
    options = parser.parse_args()

    torch.manual_seed(0)
    corpus = load_corpus(PyDocs(), 5000, cache_folder())
    size = len(corpus.vocabulary)
    end = corpus.vocabulary.end
    config = GPT2Config(
        vocab_size=size,
        n_positions=64,
        n_embd=96,
        n_layer=2,
        n_head=4,
        bos_token_id=end,
        eos_token_id=end,
    )
    transformer = GPT2LMHeadModel(config)
    train(transformer, corpus.train, options.steps)

    text = corpus.test[: options.words + 1]
    corrupted = [Text("reversed", reverse(text)), Text("shuffled", shuffle(text))]
    corrupted.append(Text("noise 20%", add_noise(text, 0.2)))
    contenders = [
        Contender("trigram", [NGram(corpus.train, size)]),
        Contender("transformer", [HuggingFace(transformer)]),
    ]
    unknown = corpus.vocabulary.unknown
    gaps = benchmark(contenders, Text("true", text), corrupted, size, unknown=unknown)
    print(render_gaps(gaps))


if __name__ == "__main__":
    main()
