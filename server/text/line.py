"""A segment as one line of text, for patterns over words, with the way back from characters to words. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from model.ctc.words import Word

PAUSE_S = 0.5  # a pause of this length separates two numbers: "twenty … five" is not 25


@dataclass(frozen=True, slots=True)
class Span:
    """Words `start` to `end` (exclusive) that are written as one, and their text."""

    start: int
    end: int
    text: str


class Line:
    """The words of a segment, joined by spaces; by a line break where a pause separates them."""

    def __init__(self, words: Sequence[Word], pause_s: float = PAUSE_S) -> None:
        self.texts = [word.text for word in words]
        self.joined = [i > 0 and words[i].start_s - words[i - 1].end_s < pause_s for i in range(len(words))]
        self._starts: list[int] = []
        parts: list[str] = []
        size = 0
        for text, joined in zip(self.texts, self.joined, strict=True):
            parts += [" " if joined else "\n", text]
            self._starts.append(size + 1)
            size += 1 + len(text)
        self._text = "".join(parts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Return a line of words without pauses."""
        return cls([Word(text, 0.0, 0.0, 1.0) for text in texts])

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
        """Yield first word, end (exclusive) and match of each match of a pattern, which begins and ends at words."""
        for match in pattern.finditer(self._text):
            yield self.word_at(match.start()), self.word_at(match.end() - 1) + 1, match

    def word_at(self, character: int) -> int:
        """Return the index of the word that a character belongs to."""
        return bisect_right(self._starts, character) - 1

    def before(self, at: int) -> str:
        """Return the word before word `at` if no pause separates them, else an empty text."""
        return self.texts[at - 1] if 0 < at < len(self.texts) and self.joined[at] else ""

    def after(self, end: int) -> str:
        """Return the word at `end` if no pause separates it from the one before, else an empty text."""
        return self.texts[end] if end < len(self.texts) and self.joined[end] else ""


def whole_words(pattern: str) -> re.Pattern[str]:
    """Compile a pattern over a `Line` that matches whole words only."""
    return re.compile(rf"(?<!\S)(?:{pattern})(?!\S)")
