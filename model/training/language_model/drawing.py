"""Text drawn from an n-gram model, so that a model of other units or another order can learn what it knows."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np

from model.lm.arpa import read_arpa
from model.lm.score import ROOT
from model.lm.trie import END_ID, START_ID, build_trie

TRIES = 10_000  # then anew: a context that has every word sums to a little less than 1, and leaves none to its suffixes


class Drawing:
    """Words of one model, each drawn given those before it; the same seed draws the same ones.

    A word comes from the longest context that the model has, or, with the probability which that leaves, from the
    next shorter one (Katz 1987).
    """

    def __init__(self, path: Path, seed: int = 1) -> None:
        """Read an ARPA file. Raises: LanguageModelError."""
        model = read_arpa(path)
        self.words, self.trie = model.words, build_trie(model.tables)
        self.rng = Random(seed)
        self._cumulated: dict[int, list[float]] = {}

    def __iter__(self) -> Iterator[str]:
        """Yield words without end, and where the model has ends of sentences, those; another sentence follows."""
        start = node = int(self.trie.after[1 + START_ID])
        while True:
            drawn = self._after(node)
            word = int(self.trie.word[drawn])
            node = start if word == END_ID else int(self.trie.after[drawn])
            yield self.words[word]

    def _after(self, node: int) -> int:
        """The node of an n-gram that goes on from a context's node."""
        begun, longer, tries = node, list[int](), 0
        while True:
            tries += 1
            if tries % TRIES == 0:
                node, longer = begun, []
            cumulated = self._chances(node)
            place = bisect(cumulated, self.rng.random() * (cumulated[-1] if node == ROOT else 1.0))
            if place == len(cumulated):  # none of them: back off
                longer.append(node)
                node = int(self.trie.suffix[node])
                continue
            child = int(self.trie.first[node]) + place
            if not any(self._follows(context, int(self.trie.word[child])) for context in longer):
                return child

    def _follows(self, node: int, word: int) -> bool:
        """Whether a context has a word of its own for it, which backing off must not give."""
        words = self.trie.word[self.trie.first[node] : self.trie.first[node + 1]]
        place = int(words.searchsorted(word))
        return place < len(words) and int(words[place]) == word

    def _chances(self, node: int) -> list[float]:
        """Probabilities of the words that a context has, added up."""
        if node not in self._cumulated:
            span = self.trie.log_prob[self.trie.first[node] : self.trie.first[node + 1]].astype(float)
            self._cumulated[node] = list(accumulate(np.exp(span).tolist()))
        return self._cumulated[node]
