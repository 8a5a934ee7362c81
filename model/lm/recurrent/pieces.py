"""Words as pieces of words: every word has them, so the recurrent language model knows no unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from model.machine.compiled import IntArray

END = 0
"""The end of a sentence, which is also what comes before the first piece of one."""
BEGIN_MARK = "_"
"""Before the letters of a piece that begins a word."""
LETTERS = "abcdefghijklmnopqrstuvwxyz'"


class Pieces:
    """The pieces, END first, and the longest ones that a word is made of. Immutable, but for a memory of words."""

    def __init__(self, symbols: Sequence[str]) -> None:
        """Pieces by their numbers. Raises: ValueError unless END, and each letter within and before words, is there."""
        self.symbols = tuple(symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        needed = ["", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS)]
        if (
            self.symbols[:1] != ("",)
            or len(self._numbers) != len(self.symbols)
            or not self._numbers.keys() >= set(needed)
        ):
            raise ValueError("the pieces of words lack a letter, or name one twice")
        self._longest = max(len(symbol) for symbol in self.symbols)
        self._known: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.symbols)

    def of(self, word: str) -> tuple[int, ...]:
        """Pieces of a word, always the longest that fits next; other characters than `LETTERS` are left out."""
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

    def of_text(self, words: Iterable[str]) -> IntArray:
        """Pieces of a sentence, its end behind them."""
        return np.array([*(piece for word in words for piece in self.of(word)), END], np.int32)
