"""Tagger for serving: marks and capitals of one final from its words alone, on the calling thread.

Its network is compiled code that gives the same logits on every processor (`model.punctuation.step`), so the same words
give the same text everywhere. Knows no times, streams or digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from model.machine.compiled import FloatArray
from model.punctuation.compiled_network import CompiledNetwork
from model.punctuation.marks import ENDS, MARKS, NONE, PERIOD, QUESTION, Labeled
from model.punctuation.weights import SHIPPED, Arrays, Vocabulary, load

LONGEST = 200  # words tagged at a time; longer finals are split to keep the arrays small


class Tagger:
    """Marks and capitals of recognized English words. Immutable: any thread may use it."""

    def __init__(self, tensors: Arrays, vocabulary: Vocabulary) -> None:
        """Raises: CheckpointError if a tensor is missing or has another shape."""
        self._vocabulary = vocabulary
        self._network = CompiledNetwork(tensors, len(vocabulary.words))

    @classmethod
    def from_file(cls, path: Path) -> Tagger:
        """Load the weights. Raises: CheckpointError."""
        return cls(*load(path))

    def warm_up(self) -> None:
        """Compile the code, or load it from disk, so that the first final need not wait."""
        self.logits(["a"])

    def logits(self, words: Sequence[str]) -> FloatArray:
        """Logits (T, 5): of no mark, comma, period and question mark; then of a capital, positive for yes."""
        return self._network.logits(self._vocabulary.rows(words))

    def tag(self, words: Sequence[str], opening: Sequence[str] = (), *, ends: bool = True) -> list[Labeled]:
        """Label the words of a final; `opening` is the part of their sentence in earlier finals.

        With `ends` the last mark ends a sentence; without it the sentence continues, and the last word has no mark.
        """
        labels: list[Labeled] = []
        before = tuple(opening)
        for first in range(0, len(words), LONGEST):
            part = words[first : first + LONGEST]
            labels += self._tag(part, before, begins=not before, ends=ends and first + LONGEST >= len(words))
            before = tuple(part) if labels[-1].mark not in ENDS else ()
        return labels

    def _tag(self, words: Sequence[str], opening: Sequence[str], *, begins: bool, ends: bool) -> list[Labeled]:
        logits = self.logits([*opening, *words])[len(opening) :]
        marks = logits[:, : len(MARKS)].argmax(axis=1).tolist()
        marks[-1] = (QUESTION if logits[-1, QUESTION] > logits[-1, PERIOD] else PERIOD) if ends else NONE
        capitals = (logits[:, len(MARKS)] > 0.0).tolist()
        labels = []
        for word, mark, capital in zip(words, marks, capitals, strict=True):
            labels.append(Labeled(word, mark, begins or capital))
            begins = mark in ENDS
        return labels


@cache
def shipped_tagger() -> Tagger:
    """Shipped tagger, loaded on first use: with the first English model of a server. Raises: CheckpointError."""
    return Tagger.from_file(SHIPPED)
