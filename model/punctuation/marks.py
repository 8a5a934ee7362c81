"""Written English as labelled words: each as the recogniser spells it, the mark behind it, whether it has a capital.

Three marks remain: comma, period, question mark. An exclamation mark is a period; a colon, a dash and a semicolon
before a conjunction are commas, another semicolon is a period. What ends quoted speech inside a sentence ("Where?" he
asked) is a comma, for quotation marks are not spoken. Knows no markup of books and no network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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


@dataclass(frozen=True, slots=True)
class Labelled:
    """One word, the index of its mark in `MARKS`, and whether its first letter is upper-case inside a sentence too."""

    word: str
    mark: int = NONE
    capital: bool = False

    def __str__(self) -> str:
        return (self.word[:1].upper() + self.word[1:] if self.capital else self.word) + MARKS[self.mark]


@dataclass(frozen=True, slots=True)
class _Read:
    """A word as the text has it, before marks are simplified."""

    word: str
    capital: bool
    marks: str  # of all signs behind it, quotation marks included
    quoted: bool  # follows an opening quotation mark or bracket


def parse(line: str) -> list[Labelled]:
    """Read what `written` writes."""
    return [parse_word(token) for token in line.split()]


def written(words: Iterable[Labelled]) -> str:
    """Labelled words as one line, as in: Yes, he said."""
    return " ".join(str(word) for word in words)


def parse_word(token: str) -> Labelled:
    """Read one word with its mark."""
    mark = MARKS.index(token[-1]) if token[-1] in MARKS else NONE
    word = token if mark == NONE else token[:-1]
    return Labelled(word.lower(), mark, word[:1].isupper())


class Names:
    """How often a word is written with a capital where no sentence begins: what tells Rose from rose."""

    def __init__(self) -> None:
        self._upper: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def count(self, words: Sequence[_Read]) -> None:
        """Count the words of a paragraph, but those with which a sentence or a quotation begins."""
        for before, word in pairwise(words):
            if not word.quoted and not set(before.marks) & set(".?!:…"):
                self._seen[word.word] += 1
                self._upper[word.word] += word.capital

    def is_name(self, word: str) -> bool:
        """Whether most of its occurrences have a capital; False for a word without any."""
        return 2 * self._upper[word] > self._seen[word]


def read(text: str) -> list[_Read]:
    """Words of a paragraph in the recogniser's spelling; numbers become words."""
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
        heard = [(word, part[:1].isupper() and i == 0) for part, said in parts for i, word in enumerate(said)]
        opened = opened or any(sign in _OPEN for sign in found["before"]) or found["core"].startswith("'")
        for i, (word, capital) in enumerate(heard):
            after = found["after"] if i == len(heard) - 1 else ""
            words.append(_Read(word, capital, after, opened and i == 0))
        opened = False
    return words


def labelled(words: Sequence[_Read], names: Names) -> list[Labelled]:
    """Simplify the marks; a capital that a quotation or a sentence begins with counts only for a name."""
    found: list[Labelled] = []
    begins = True
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else None
        mark = _mark(word.marks, following)
        named = names.is_name(word.word) if word.quoted or begins else word.capital
        found.append(Labelled(word.word, mark, begins or (word.capital and named)))
        begins = mark in ENDS
    return found


def _mark(signs: str, following: _Read | None) -> int:
    last = following is None
    goes_on = following is not None and not following.capital
    if last or "?" in signs or "!" in signs:
        return COMMA if goes_on else QUESTION if "?" in signs else PERIOD
    if "." in signs:
        return PERIOD
    if ";" in signs:
        return COMMA if following is not None and following.word in _CONJUNCTIONS else PERIOD
    if "…" in signs or "—" in signs:
        closed = any(sign in _CLOSE for sign in signs)
        return PERIOD if not goes_on and ("…" in signs or closed) else COMMA
    return COMMA if "," in signs or ":" in signs else NONE
