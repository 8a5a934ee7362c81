"""Word pieces: every word can be split into them, so a recurrent language model has no unknown words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

END = 0
"""Piece for the end of a sentence; also the context before the first piece of a sentence."""
BEGIN_MARK = "_"
"""First character of a piece that begins a word."""
LETTERS = "abcdefghijklmnopqrstuvwxyz'"


class Pieces:
    """Inventory of pieces, END first, and greedy splitting of words. Immutable except for a cache of words."""

    def __init__(self, symbols: Sequence[str]) -> None:
        """Take pieces in the order of their ids. Raises: ValueError if a piece is missing or is there twice.

        END is required, and each letter both as the first of a word and inside one.
        """
        self.symbols = tuple(symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        needed = ["", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS)]
        if (
            self.symbols[:1] != ("",)
            or len(self._numbers) != len(self.symbols)
            or not self._numbers.keys() >= set(needed)
        ):
            raise ValueError("the word pieces lack a letter, or contain a duplicate")
        self._longest = max(len(symbol) for symbol in self.symbols)
        self._known: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.symbols)

    def of(self, word: str) -> tuple[int, ...]:
        """Pieces of a word: at each position the longest that matches. Characters outside `LETTERS` are ignored."""
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = tuple(self._cut(word))
        return found

    def _cut(self, word: str) -> Iterable[int]:
        rest = BEGIN_MARK + "".join(letter for letter in word if letter in LETTERS)
        while len(rest.lstrip(BEGIN_MARK)):
            length = min(len(rest), self._longest)
            while rest[:length] not in self._numbers:
                length -= 1
            yield self._numbers[rest[:length]]
            rest = rest[length:]

    def of_text(self, words: Iterable[str]) -> NDArray[np.int32]:
        """Pieces of a sentence, followed by END."""
        return np.array([*(piece for word in words for piece in self.of(word)), END], np.int32)
