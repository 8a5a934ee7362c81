"""Language models that score whole texts rather than word by word, and their weights in rescoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model.machine.compiled import DoubleArray


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """Weights for rescoring with a whole-text language model; zero by default."""

    weight: float = 0.0
    """Weight of the model's log-probability."""
    ngram_discount: float = 0.0
    """Subtracted from the weight of the search's n-gram model when this model is used too."""
    word_bonus: float = 0.0
    """Added for each word."""


class TextModel(Protocol):
    """Language model that scores whole texts."""

    counts: Counts

    def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
        """Natural log-probability of each text, a sequence of words: (N,)."""
