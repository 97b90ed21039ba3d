"""Captions as words, against the tokeniser of the COCO caption metrics."""

# ruff: noqa: RUF001  (the signs that look alike are meant: captions have them)

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bayesrnn.tasks.captions.data.tokens import ptb_tokens
from bayesrnn.tasks.captions.evaluation import scores

FLICKR8K = Path(__file__).parents[4] / "shared" / "data" / "flickr8k"

# Checked by hand, and against the Java tokeniser below; words between single spaces.
EXAMPLES = {
    "": "",
    " . , ; ": "",
    "A man , wearing a hat , runs .": "a man wearing a hat runs",
    "Two dogs,one cat;a bird:flying.": "two dogs one cat a bird flying",
    "  stray\nnewlines\r\n and\ttabs ": "stray newlines and tabs",
    # Quotes and brackets.
    "He said \"hello\" to 'them' and “us” and ‘me’.": "he said hello to them and us and me",
    "A (small) dog [big] {cat}": "a -lrb- small -rrb- dog -lsb- big -rsb- -lcb- cat -rcb-",
    "a smile :) or :-(": "a smile :-rrb- or :--lrb-",
    # Contractions and possessives.
    "I don't, can't, WON'T; isn’t it": "i do n't ca n't wo n't is n't it",
    "it's the boys' and man's": "it 's the boys and man 's",
    "I'm, you're, they've, she'd, we'll": "i 'm you 're they 've she 'd we 'll",
    "He cannot and is gonna, wanna, gotta.": "he can not and is gon na wan na got ta",
    "lemme, gimme, 'tis, 'twas": "lem me gim me 't is 't was",
    "y'all, ma'am, O'Brien's 5 o'clock": "y' all ma'am o'brien 's 5 o'clock",
    "rock'n'roll and rock 'n' roll": "rock 'n' roll and rock 'n' roll",
    "Her A's and D's, the '90s, 1990's": "her a 's and d 's the '90s 1990 's",
    # Signs.
    "Tom & Jerry at AT&T, B&Bs, black&white": "tom & jerry at at&t b&b s black & white",
    "&lt;b&gt; Q&amp;A &amp; it&apos;s &quot;x&quot; &nbsp;": "< b > q&a & it 's x",
    "$5, £5, €5, US$5, 50¢, ¥5, 10%, #1": "$ 5 # 5 $ 5 us$ 5 50 cents ¥ 5 10 % # 1",
    "Wait... what!! Really?! Yes! No…": "wait what !! really ?! yes no",
    "a*b, a=b, a+b, a_b, #tag, 90°": "a * b a = b a + b a_b #tag 90 °",
    "<b>bold</b> <3 at a@b.com": "<b> bold </b> < 3 at a@b.com",
    # Numbers.
    "1,000 or 10,000.50 or 3.5 or .5 or -5": "1,000 or 10,000.50 or 3.5 or .5 or -5",
    "1/2, 1 1/2 cups, ½, 1½": "1/2 1\u00a01/2 cups 1/2 1 1/2",
    "at 12:30pm on the 21st, 4x4, 20mph": "at 12:30 pm on the 21st 4x4 20mph",
    "6'2\" and 5,000ft": "6 2 and 5,000 ft",
    # Hyphens, dashes, slashes.
    "well-known -- a 2-year-old - a–b a—b": "well-known a 2-year-old a b a b",
    "word- -word, a jack-o'-lantern, 3.5-inch": "word word a jack-o lantern 3.5-inch",
    "and/or, his/her, w/o, a/b/c/d, either / or": "and/or his/her w/o a/b/c / d either / or",
    # Stops that belong to the word, and those that end a sentence.
    "Mr. Smith vs. Dr. Who on Main St.": "mr. smith vs. dr. who on main st.",
    "the U.S. Army in Washington D.C.": "the u.s. army in washington d.c.",
    "fries, etc.": "fries etc.",
    "at 5 p.m. a T.V.": "at 5 p.m. a t.v.",
    "No. 5 says no.": "no. 5 says no",
    "Plan b. A dog. Plan b. dog": "plan b a dog plan b. dog",
    "The end.A new one": "the end.a new one",
    "www.example.com, foo.com/bar, http://foo.org/a?b=c.": (
        "www.example.com foo.com/bar http://foo.org/a?b=c"
    ),
    # Other alphabets, what joins nothing, and what no one can read.
    "Café ÉCLAIR Zoë's jalapeño Москва 日本": "café éclair zoë 's jalapeño москва 日本",
    "soft\u00adhyphen zero\u200bwidth a😀b ★": "softhyphen zero width a b ★",
    "colour grey centre": "colour grey centre",
}


@pytest.mark.parametrize("caption", EXAMPLES)
def test_examples(caption):
    assert " ".join(ptb_tokens(caption)) == EXAMPLES[caption]


def test_words_have_no_plain_space_and_are_never_empty():
    words = [word for caption in EXAMPLES for word in ptb_tokens(caption)]
    assert all(word and " " not in word and word == word.lower() for word in words)


def test_a_list_of_its_own():
    ptb_tokens("a dog").append("changed")
    assert ptb_tokens("a dog") == ["a", "dog"]


def test_the_examples_by_java():
    need_java()
    got = scores._words_by_java([[caption] for caption in EXAMPLES])
    assert dict(zip(EXAMPLES, (line for (line,) in got), strict=True)) == EXAMPLES


def test_every_caption_of_flickr8k_by_java():
    need_java()
    captions = flickr8k()
    (java,) = scores._words_by_java([captions])
    ours = [" ".join(ptb_tokens(caption)) for caption in captions]
    differ = [pair for pair in zip(ours, java, strict=True) if pair[0] != pair[1]]
    assert len(captions) == 40_000
    assert differ == []


def test_words_of_flickr8k_stay_when_split_again():
    """A model's captions are made of such words, and the metrics split them again."""
    once = [" ".join(ptb_tokens(caption)) for caption in flickr8k()]
    assert [" ".join(ptb_tokens(caption)) for caption in once] == once


def flickr8k() -> list[str]:
    if not FLICKR8K.is_dir():
        pytest.skip("needs Flickr8k in shared/data/flickr8k beside the project")
    files = [FLICKR8K / f"captions_{split}.json" for split in ("train", "val", "test")]
    found = [json.loads(file.read_text("utf-8"))["annotations"] for file in files]
    return [annotation["caption"] for annotations in found for annotation in annotations]


def need_java() -> None:
    if not scores.available():
        pytest.skip("needs pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
