"""Language models of whole texts, which a search cannot follow word by word; what they count for beside its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model.machine.compiled import DoubleArray


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """What a language model of whole texts counts for in a score: by default for nothing."""

    weight: float = 0.0
    """Of its log-probability."""
    ngram_discount: float = 0.0
    """What the search's n-grams count for less where it counts, too."""
    word_bonus: float = 0.0
    """For each word."""


class TextModel(Protocol):
    """A language model of whole texts."""

    counts: Counts

    def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
        """Return the natural log-probability of each text, a sequence of words: (N,)."""
