"""Captions as words, split as the COCO caption metrics split them, without the Java they need."""

# ruff: noqa: RUF001  (the signs that look alike are meant: captions have them)

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache


def ptb_tokens(caption: str) -> list[str]:
    """The words of a caption, lower case and without punctuation, by Penn Treebank tokenisation."""
    text = caption.replace("\u00ad", "").replace("&apos;", "'")  # soft hyphens are within a word
    if _ACROSS_SPACES.search(text):
        return list(_split(" ".join(text.split())))
    return [word for chunk in text.split() for word in _remembered(chunk)]


def _split(text: str) -> tuple[str, ...]:
    words = []
    for match in _TOKEN.finditer(text):
        word, rewrite = match[0].lower(), _REWRITE.get(match.lastgroup or "")
        words += [word] if rewrite is None else rewrite(word)
    return tuple(words)


# Captions repeat a few thousand words, so that most are split from memory.
_remembered = lru_cache(maxsize=1 << 16)(_split)

# Read across a space are only numbers ("1 1/2", "No. 5"), tags ("<a href=...>") and initials.
_ACROSS_SPACES = re.compile(r"[0-9<]|\b[A-Za-z]\.\s")

# The metrics tokenise with Stanford's PTBTokenizer (of CoreNLP 3.4.1, through pycocoevalcap) and
# then drop plain punctuation. That tokeniser takes the longest match at each position; here the
# first rule that matches wins, so that longer things come first. A character that no rule matches
# is dropped: spaces, quotes, commas, single stops and dashes, and what that tokeniser cannot read.
# Its oddities are kept, because words that differ from the metrics' words cost score:
# brackets stay, as "-lrb-", and so do "!!" and "?!", and words joined by a stop ("end.then").

_NO_LETTER = r"\[-`{-©«-´¶-¹»-¿×÷\u2000-\u2bff\u3000-\u303f\ufe00-\U0010ffff"
_L = rf"[^\x00-@{_NO_LETTER}]"  # a letter of any alphabet, or an accent that combines with one
_A = rf"[^\x00-/:-@{_NO_LETTER}]"  # a letter or an ASCII digit
_APOS = "['’]"
_PATH = r"[^\s\"<>|(){}]*[^\s\"<>|(){}.,!?-]"
_DECIMAL = r"[0-9]+(?:[.,][0-9]+)+"
_ENDING = rf"(?i:s|m|d|re|ve|ll)(?!{_A})"  # of a contraction, behind its apostrophe
_PIECE = rf"(?:{_DECIMAL}(?=[-_])|(?:[dDoOlL]{_APOS}(?!{_ENDING})(?={_A}))?{_A}+)"

_ABBREVIATIONS = """
    adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bhd bldg blvd brig bros calif capt
    cf cie cmdr co col colo conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb
    fla fri ft ga gen gov govs hon inc ind insp intl invt jan jos jr jul jun kan kans ky lt ltd maj
    mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt mtg natl neb nev nov oct okla
    penn pfc ph ph[.]d plc pres prof profs pte pty pvt rd rep reps rev rt sen sens sep sept seq sfc
    sgt spc sq sr st ste supt sys tel tenn thu thurs tue tues univ va vs vt wed wis wisc wm wyo
"""
_PLACES = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"  # in lower case, some are words
_BEFORE_NUMBERS = "art ca fig no nos op pp"  # elsewhere, the stop ends the sentence
_STARTS = """
    A About After An As At But He Her In It Many More Once One Other Our She So Some That The Their
    There These They This We What While You
"""
_PAIRS = "cannot gimme gonna gotta lemme wanna"


def _any(words: str) -> str:
    return "|".join(words.split())


_RULES: list[tuple[str, str]] = [
    # Addresses and names of the web.
    ("", rf"(?:https?://|www\.){_PATH}"),
    ("", rf"{_A}+(?:[.-]{_A}+)*\.(?:com|net|org|edu)/{_PATH}"),
    ("", rf"{_A}+(?:[._-]{_A}+)*@{_A}+(?:[.-]{_A}+)*|@[A-Za-z_]\w*|\#{_L}+"),
    # HTML: tags and some entities stay whole, others become their character.
    ("spaced", r"</?[A-Za-z][^<>]*>"),
    ("", r"&\#[0-9]+;|&[aeiouAEIOU](?:acute|grave|uml);"),
    ("entity", r"&(?i:amp|lt|gt|nbsp|quot|[mn]dash);"),
    ("bracket", rf"[<>]?[:;=][-o*']?[()DPpO|](?!{_A})"),  # faces, such as :-)
    # Numbers with a fraction, "1 1/2", and up to three words with slashes, "his/her".
    ("spaced", r"[0-9]{1,4}[ -][0-9]{1,4}[/⁄][0-9]{1,4}(?![0-9])"),
    ("", rf"{_A}+(?:-{_L}+){{0,2}}(?:[/⁄]{_A}+(?:-{_L}+){{0,2}}){{1,2}}"),
    ("fraction", "[¼½¾⅓⅔]"),
    # Capitals with an ampersand, "AT&T", and dollars of a country, "US$".
    ("ampersand", r"[A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+"),
    ("", r"[A-Z]{1,2}\$"),
    # What keeps its stop: "U.S.", "U.S.-based", abbreviations, and any single letter, except
    # before a word that starts a sentence.
    ("", rf"[A-Za-z](?=\. (?:{_any(_STARTS)})(?![^ ]))"),
    ("", rf"[A-Za-z](?:\.[A-Za-z])+\.(?!{_A})(?:-{_A}+)*"),
    ("", rf"(?:(?i:{_any(_ABBREVIATIONS)})|{_any(_PLACES)}|[A-Za-z])\.(?!{_L})(?:-{_A}+)*"),
    ("", rf"(?i:{_any(_BEFORE_NUMBERS)})\.(?=\s*[0-9])"),
    # Two words in one.
    ("pair", rf"(?i:{_any(_PAIRS)})(?!{_A}|['’_-]{_A})"),
    ("pair", rf"'(?i:tis|twas)(?!{_A})"),
    # Apostrophes: contractions, "'n'" and the few words that begin or end with one, and "'90s".
    ("", rf"{_L}{_A}*?(?=[nN]['’`‘][tT])"),
    ("contraction", rf"[nN]['’`‘][tT](?!{_L})|(?<!['’]){_APOS}{_ENDING}"),
    ("", rf"{_APOS}[nN]{_APOS}|{_APOS}(?i:em|till?|cause|[2-9]0s|n(?![^ ]))(?!{_A})"),
    ("", rf"{_APOS}[0-9][0-9](?!{_A}|['’\"])"),
    ("", rf"(?i:ol|somethin|dunkin){_APOS}(?!{_A})|[yYjJ]{_APOS}(?={_L})"),
    ("", rf"(?i:c'mon|e'er|ev'ry|li'l|nat'l|nor'easter|s'mores)(?!{_A})"),
    # Words: with hyphens, with an apostrophe ("D'Arcy", "ma'am"), and plain; then numbers.
    ("", rf"{_PIECE}(?:[-_‐‑]{_PIECE})+|[dDoOlL]{_APOS}(?!{_ENDING}){_A}+"),
    ("", rf"[A-HJ-XZn]{_APOS}(?!{_ENDING}){_L}{{2,}}"),
    ("", rf"{_L}+[aeiouyAEIOUY]{_APOS}(?!{_ENDING})[aeiouA-Z]{_L}*"),
    ("", rf"(?i:anti|pro)-(?!{_A}|-)"),
    ("", rf"{_L}{_A}*(?:[.!?]{_L}{_A}*)*|[0-9]+{_L}{_A}*"),
    ("", r"[-+]?(?:[0-9]*(?:[.:,][0-9]+)+|[0-9]+)"),
    # Signs.
    ("", r"-(?i:[lr][rsc]b)-"),
    ("bracket", r"[()\[\]{}]"),
    ("money", "[£€¤¢₠]"),
    ("", r"[!?]{2,}|-{5,}|_+|\*+|\#+|@+|>>|<<|[$%&+/<=>\\^|~]"),
    ("", r"[¡¥-©¬®-´¶-¹¿×÷\u2016\u2017‚„-•‰-‸※‾-⁂⁄⁰-₎₤\u2100-\u2bff、。\uff01-\uff65]"),
]

_TOKEN = re.compile(
    "|".join(f"(?P<{kind}_{i}>{rule})" if kind else rule for i, (kind, rule) in enumerate(_RULES))
)

_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_ENTITIES = {"&amp;": ["&"], "&lt;": ["<"], "&gt;": [">"]}
_FRACTIONS = {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_MONEY = {"£": "#", "¢": "cents"}  # the Treebank's pound is a "#"; all others become dollars

# What a rule's match, in lower case, turns into; the rules without a kind leave it as it is.
_REWRITES: dict[str, Callable[[str], list[str]]] = {
    "spaced": lambda word: [word.replace(" ", "\u00a0")],  # one word with a space in it
    "entity": lambda word: _ENTITIES.get(word, []),
    "bracket": lambda word: ["".join(_BRACKETS.get(sign, sign) for sign in word)],
    "fraction": lambda word: [_FRACTIONS[word]],
    "ampersand": lambda word: [word.replace("&amp;", "&")],
    "pair": lambda word: [word[:2], word[2:]] if word[0] == "'" else [word[:3], word[3:]],
    "contraction": lambda word: [word.replace("’", "'").replace("‘", "`")],
    "money": lambda word: [_MONEY.get(word, "$")],
}
_REWRITE = {f"{kind}_{i}": _REWRITES[kind] for i, (kind, _) in enumerate(_RULES) if kind}
