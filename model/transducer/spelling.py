"""Spelling of words in the pieces of a model, and how rare a word is by its pieces.

The pieces that a model writes for a word are those into which its training texts were split, which releases do not
say. Symbols are numbered in the order of their merges (BPE) or of their frequency (unigram), so that both splits can be
estimated: by merging the pair with the lowest number first, and by Zipf's law.
Source: Sennrich et al. 2016 (merges); Kudo 2018 (unigram), Zipf 1949.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from model.ctc.tokens import Tokens
from model.text.letters import is_ideograph

FIRST_RANKS = 8  # ranks that are about as frequent as one another
WORDS = 10_000  # whose spellings are kept: streams often have the same key terms
_NAMED = re.compile(r"<.+>")  # `<unk>`: without text, unlike a byte `<0xNN>`
Pieces = tuple[int, ...]


class Speller:
    """Spells words in the symbols of a model."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._first: dict[bytes, int] = {}  # pieces that begin a word
        self._next: dict[bytes, int] = {}
        self._space = False  # whether a symbol is the space
        self.writes = [False] * len(tokens.symbols)  # whether a symbol has text
        for number, (symbol, text) in enumerate(zip(tokens.symbols, tokens.texts, strict=True)):
            if not text and tokens.ends[number] and number != tokens.blank:
                self._space = True
            elif text and not (_NAMED.fullmatch(symbol) and symbol.encode() == text):
                self._pieces(first=tokens.starts[number]).setdefault(text, number)
                self.writes[number] = True
        self._longest = max(map(len, (*self._first, *self._next)), default=0)
        self.spellings = lru_cache(maxsize=WORDS)(self._spellings)
        self._total = math.log(math.log(max(3, len(tokens.symbols))))

    @property
    def spells_key_terms(self) -> bool:
        """Whether there are symbols that write letters a to z, or ideographs."""
        texts = (text.decode("utf-8", "ignore").lower() for text in (*self._first, *self._next))
        return any("a" <= text[:1] <= "z" or is_ideograph(text) for text in texts)

    def _spellings(self, word: str) -> tuple[Pieces, ...]:
        """Return six ways in which a model may write a word, () for one that it cannot.

        Two splits each of small letters, a first capital, and capitals.
        """
        texts = (word, word.capitalize(), word.upper())
        return tuple(pieces for text in texts for pieces in (self._by_merges(text), self._by_frequency(text)[0]))

    def pieces(self, word: str) -> Pieces:
        """Return the likeliest pieces of a word in this spelling, () if it has none."""
        return self._by_frequency(word)[0]

    def log_prob(self, word: str) -> float:
        """Natural log-probability of a word by the ranks of its pieces; minus infinity if it cannot be spelled."""
        return max(self._by_frequency(text)[1] for text in (word, word.capitalize(), word.upper()))

    def _pieces(self, *, first: bool) -> dict[bytes, int]:
        return self._first if first else self._next

    def _by_frequency(self, word: str) -> tuple[Pieces, float]:
        """Return the likeliest split, and its log-probability if frequencies follow Zipf's law; () if there is none."""
        text = word.encode()
        best: list[tuple[float, Pieces]] = [(-math.inf, ())] * (len(text) + 1)
        best[0] = (0.0, ())
        for end in range(1, len(text) + 1):
            for begin in range(max(0, end - self._longest), end):
                score, pieces = best[begin]
                if score == -math.inf:
                    continue
                number = (self._next if begin else self._first).get(text[begin:end])
                if number is None and begin == 0 and self._space:
                    number = self._next.get(text[:end])
                if number is None:
                    continue
                total = score - math.log(number + FIRST_RANKS) - self._total
                if total > best[end][0]:
                    best[end] = total, (*pieces, number)
        return best[-1][1], best[-1][0]

    def _by_merges(self, word: str) -> Pieces:
        """Return the split by merges, pairs of the lowest number first; () if a letter has no symbol."""
        parts = [b"", *(letter.encode() for letter in word)]  # the first one begins the word
        while True:
            pairs = [
                (number, at)
                for at in range(len(parts) - 1)
                if (number := self._pieces(first=at == 0).get(parts[at] + parts[at + 1])) is not None
            ]
            if not pairs:
                break
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if not parts[0] and not self._space:
            return ()
        numbers = [self._pieces(first=at == 0).get(part) for at, part in enumerate(parts) if part]
        return tuple(number for number in numbers if number is not None) if None not in numbers else ()
