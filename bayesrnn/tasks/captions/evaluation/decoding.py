"""Captions by beam search, from one set of weights or from the average of many at each word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrnn.data.vocabulary import Vocabulary
from bayesrnn.devices import device_of
from bayesrnn.ensemble import LogMeanExp, evaluating, log_softmax
from bayesrnn.methods import Member
from bayesrnn.tasks.captions.model import Captioner, State

LONGEST = 30
"""Captions end after this many words."""
IMAGES_AT_ONCE = 250
WEIGHTS_AT_ONCE = 2**28
"""Upper limit on the weights of all samples in memory: 1 GB."""


@dataclass(frozen=True)
class Caption:
    """A decoded caption."""

    tokens: tuple[int, ...]
    """Its words, without the end."""
    log_prob: float
    """log p of its words, in nats, with the end if it has one."""
    ended: bool
    """Whether the model ended it; otherwise it was cut off."""

    def text(self, vocabulary: Vocabulary) -> str:
        return " ".join(vocabulary.words[token] for token in self.tokens)


def decode(
    model: nn.Module,
    members: Sequence[Member],
    features: Tensor,
    vocabulary: Vocabulary,
    *,
    beam: int = 3,
    longest: int = LONGEST,
    progress: Callable[[int], None] = lambda images: None,
) -> list[Caption]:
    """The likeliest captions that beam search finds for images (N, F).

    The probability of a word is the members' average, given the words before it; each member has its own
    state. A beam of 1 is greedy. A wider beam may lose the greedy caption on the way and end with a less
    likely one, so the greedy caption takes part as well: the result is never less likely. The unknown
    word is not used. (With dropout every word has new masks, so that the same caption has another
    probability each time; these statements are then true on average only.)
    """
    if beam < 1 or longest < 1:
        raise ValueError(f"beam = {beam} and the length {longest} must be at least 1.")
    if not members:
        raise ValueError("there are no weights to decode with.")
    assert isinstance(model, Captioner)
    captions: list[Caption] = []
    with torch.no_grad(), evaluating(model):
        parts = _parts(model, members)
        for some in features.split(IMAGES_AT_ONCE):
            found = _search(parts, some, vocabulary, 1, longest)
            if beam > 1:
                wider = _search(parts, some, vocabulary, beam, longest)
                found = [
                    max(pair, key=lambda caption: caption.log_prob)
                    for pair in zip(found, wider, strict=True)
                ]
            captions += found
            progress(len(some))
    return captions


def _parts(model: Captioner, members: Sequence[Member]) -> list[tuple[Captioner, Member]]:
    """Each member as a model with its weights, if they fit in memory: they are then not drawn at every word.

    With dropout a member is more than its weights, and keeps to the model.
    """
    as_they_are = [(model, member) for member in members]
    if model.dropout.p > 0:
        return as_they_are
    parts: list[tuple[Captioner, Member]] = []
    for member in members:
        with member():
            parts.append((model.copy(), nullcontext))
        weights = sum(weight.numel() for weight in parts[0][0].parameters())
        if len(members) * weights > WEIGHTS_AT_ONCE:
            return as_they_are
    return parts


def _search(
    parts: Sequence[tuple[Captioner, Member]],
    features: Tensor,
    vocabulary: Vocabulary,
    beam: int,
    longest: int,
) -> list[Caption]:
    """Beam search. Hypothesis k of image n is column n * beam + k; one that has ended stays as it is."""
    images, end = len(features), vocabulary.end
    device = device_of(parts[0][0])
    ensemble = _Ensemble(parts, features.repeat_interleave(beam, 0).to(device))
    # At first the hypotheses of an image are equal: only one of them may be continued.
    scores = torch.full((images, beam), float("-inf"), dtype=torch.float64)
    scores[:, 0] = 0.0
    ended = torch.zeros(images, beam, dtype=torch.bool)
    tokens = torch.empty(images, beam, 0, dtype=torch.long)
    last = torch.full((images * beam,), end)
    for _ in range(longest):
        log_probs = ensemble.next_word(last.to(device)).cpu().double().view(images, beam, -1)
        log_probs[..., vocabulary.unknown] = float("-inf")
        # Of a caption that has ended, the only continuation is itself.
        log_probs[ended] = float("-inf")
        log_probs[..., end] = torch.where(ended, 0.0, log_probs[..., end])
        scores, best = (scores[..., None] + log_probs).flatten(1).topk(beam)
        parent, word = best // len(vocabulary), best % len(vocabulary)
        ended = ended.gather(1, parent) | (word == end)
        tokens = tokens.gather(1, parent[..., None].expand(-1, -1, tokens.shape[-1]))
        tokens = torch.cat([tokens, word[..., None]], dim=-1)
        # Every hypothesis still open is less likely than the best one, and can only become less so.
        if ended[:, 0].all():
            break
        columns = (torch.arange(images)[:, None] * beam + parent).flatten()
        ensemble.follow(columns.to(device))
        last = word.flatten()
    return [
        _caption(tokens[n, 0].tolist(), scores[n, 0].item(), bool(ended[n, 0]), end)
        for n in range(images)
    ]


def _caption(tokens: list[int], score: float, ended: bool, end: int) -> Caption:
    words = tokens[: tokens.index(end)] if ended else tokens
    return Caption(tuple(words), score, ended)


class _Ensemble:
    """The members' average prediction of the next word; each member carries a state of its own."""

    def __init__(self, parts: Sequence[tuple[Captioner, Member]], features: Tensor) -> None:
        self.parts = parts
        self.states: list[State] = []
        for model, member in parts:
            with member():
                self.states.append(model.begin(features))

    def next_word(self, last: Tensor) -> Tensor:
        """log p (hypotheses, V) of each next word."""
        average = LogMeanExp()
        for index, (model, member) in enumerate(self.parts):
            with member():
                logits, self.states[index] = model(last[None], self.states[index])
            average.add(log_softmax(logits[0]))
        return average.value

    def follow(self, columns: Tensor) -> None:
        """Go on with these hypotheses."""
        self.states = [(h[:, columns], c[:, columns]) for h, c in self.states]
