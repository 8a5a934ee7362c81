"""Written English as labeled words: the recognizer's spelling, the mark after the word, whether it is capitalized.

There are three marks: comma, period, question mark. An exclamation mark counts as a period; a colon, a dash and a
semicolon before a conjunction count as commas, other semicolons as periods. A mark at the end of quoted speech inside a
sentence ("Where?" he asked) counts as a comma, because quotation marks are not spoken. Knows no markup and no network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from model.text.spelled import spoken

MARKS = ("", ",", ".", "?")
NONE, COMMA, PERIOD, QUESTION = range(4)
ENDS = (PERIOD, QUESTION)

_CONJUNCTIONS = {"and", "but", "for", "nor", "or", "so", "yet"}
_TOKEN = re.compile(r"(?P<before>[^\w']*)(?P<core>.*?)(?P<after>[^\w']*)", re.DOTALL)
_QUOTES = str.maketrans({"’": "'", "‘": "'", "\u2060": None, "\ufeff": None, "\xa0": " ", "\u200a": " "})
_DASH = re.compile(r"[—―⸺⸻]+|--+")
_OPEN = '“"(['
_CLOSE = '”"'


class Labeled(msgspec.Struct, frozen=True, gc=False):
    """Word with the index of its mark in `MARKS`, and whether its first letter is upper case."""

    word: str
    mark: int = NONE
    capital: bool = False

    def __str__(self) -> str:
        return (self.word[:1].upper() + self.word[1:] if self.capital else self.word) + MARKS[self.mark]


@dataclass(frozen=True, slots=True)
class _Read:
    """Word of a text before its marks are simplified."""

    word: str
    capital: bool
    marks: str  # all signs after it, including quotation marks
    quoted: bool  # follows an opening quotation mark or bracket


def parse(line: str) -> list[Labeled]:
    """Parse the output of `written`."""
    return [parse_word(token) for token in line.split()]


def written(words: Iterable[Labeled]) -> str:
    """Labeled words as one line of text: Yes, he said."""
    return " ".join(str(word) for word in words)


def parse_word(token: str) -> Labeled:
    """Parse one word with its mark."""
    mark = MARKS.index(token[-1]) if token[-1] in MARKS else NONE
    word = token if mark == NONE else token[:-1]
    return Labeled(word.lower(), mark, word[:1].isupper())


class Names:
    """Counts of capitalized words inside sentences, which distinguish Rose from rose."""

    def __init__(self) -> None:
        self._upper: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def count(self, words: Sequence[_Read]) -> None:
        """Count the words of a paragraph except those that begin a sentence or a quotation."""
        for before, word in pairwise(words):
            if not word.quoted and not set(before.marks) & set(".?!:…"):
                self._seen[word.word] += 1
                self._upper[word.word] += word.capital

    def is_name(self, word: str) -> bool:
        """Whether most occurrences are capitalized; False for a word that was not counted."""
        return 2 * self._upper[word] > self._seen[word]


def read(text: str) -> list[_Read]:
    """Words of a paragraph in the recognizer's spelling; numbers become words."""
    words: list[_Read] = []
    opened = False
    for token in _DASH.sub(" — ", text.translate(_QUOTES).replace("…", " … ")).split():
        found = _TOKEN.fullmatch(token)
        if found is None or not spoken(found["core"]):
            if words and any(sign in _CLOSE + "—….,;:?!" for sign in token):
                words[-1] = replace(words[-1], marks=words[-1].marks + token)
            opened = opened or token[-1] in _OPEN
            continue
        parts = [(part, spoken(part).split()) for part in found["core"].split("-")]
        spelled = [(word, part[:1].isupper() and i == 0) for part, said in parts for i, word in enumerate(said)]
        opened = opened or any(sign in _OPEN for sign in found["before"]) or found["core"].startswith("'")
        for i, (word, capital) in enumerate(spelled):
            after = found["after"] if i == len(spelled) - 1 else ""
            words.append(_Read(word, capital, after, opened and i == 0))
        opened = False
    return words


def labeled(words: Sequence[_Read], names: Names) -> list[Labeled]:
    """Simplify the marks; at the start of a sentence or quotation only names are labeled as capitalized words."""
    found: list[Labeled] = []
    begins = True
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else None
        mark = _mark(word.marks, following)
        named = names.is_name(word.word) if word.quoted or begins else word.capital
        found.append(Labeled(word.word, mark, begins or (word.capital and named)))
        begins = mark in ENDS
    return found


def _mark(signs: str, following: _Read | None) -> int:
    last = following is None
    continues = following is not None and not following.capital
    if last or "?" in signs or "!" in signs:
        return COMMA if continues else QUESTION if "?" in signs else PERIOD
    if "." in signs:
        return PERIOD
    if ";" in signs:
        return COMMA if following is not None and following.word in _CONJUNCTIONS else PERIOD
    if "…" in signs or "—" in signs:
        closed = any(sign in _CLOSE for sign in signs)
        return PERIOD if not continues and ("…" in signs or closed) else COMMA
    return COMMA if "," in signs or ":" in signs else NONE
