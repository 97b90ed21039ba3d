"""The words of a text that stand out."""

from __future__ import annotations

import math

import pytest

from bayesrnn.tasks.language.evaluation.words import ScoredWord, outstanding, words_of


def _word(surprise: float, information: float = 0.0, word: str = "w") -> ScoredWord:
    return ScoredWord(word, False, math.exp(-surprise), surprise, 1.0, information)


def test_they_are_a_share_by_rank_the_most_outstanding_first():
    words = [_word(n % 100, information=-n) for n in range(200)]
    found = outstanding(words, sampled=True, share=0.02)
    assert found.unlikely == (99, 199, 98, 198)
    assert found.uncertain == (0, 1, 2, 3)
    assert outstanding(words, sampled=True).unlikely[:4] == found.unlikely
    assert len(outstanding(words, sampled=True).unlikely) == 10


def test_there_is_at_least_one_and_never_a_line_end():
    words = [_word(0.1), _word(0.2, 0.5), _word(9.0, 3.0, "<eos>")]
    found = outstanding(words, sampled=True)
    assert (found.unlikely, found.uncertain) == ((1,), (1,))
    assert outstanding(words, sampled=False).uncertain == ()


def test_the_words_of_a_text():
    assert words_of("a b\n\n \nc", str.split, "it") == [["a", "b"], ["c"]]
    with pytest.raises(ValueError, match="it has no words"):
        words_of(" \n", str.split, "it")
