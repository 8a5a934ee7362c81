"""Sampling of text from an n-gram model, to train a model with other units or another order on it."""

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

TRIES = 10_000  # then restart: a context with all words may sum to slightly less than 1, so that backing off finds none


class Drawing:
    """Random words of a model, each drawn given the words before it; deterministic given the seed.

    A word is drawn from the longest context of the model or, with the probability left over by it, from the next
    shorter one (Katz 1987).
    """

    def __init__(self, path: Path, seed: int = 1) -> None:
        """Read an ARPA file. Raises: LanguageModelError."""
        model = read_arpa(path)
        self.words, self.trie = model.words, build_trie(model.tables)
        self.rng = Random(seed)
        self._cumulated: dict[int, list[float]] = {}

    def __iter__(self) -> Iterator[str]:
        """Yield words endlessly, including the ends of sentences if the model has them."""
        start = node = int(self.trie.after[1 + START_ID])
        while True:
            drawn = self._after(node)
            word = int(self.trie.word[drawn])
            node = start if word == END_ID else int(self.trie.after[drawn])
            yield self.words[word]

    def _after(self, node: int) -> int:
        """Draw the node of an n-gram that extends the context of a node."""
        begun, longer, tries = node, list[int](), 0
        while True:
            tries += 1
            if tries % TRIES == 0:
                node, longer = begun, []
            cumulated = self._chances(node)
            place = bisect(cumulated, self.rng.random() * (cumulated[-1] if node == ROOT else 1.0))
            if place == len(cumulated):  # the probability left over was drawn: back off
                longer.append(node)
                node = int(self.trie.suffix[node])
                continue
            child = int(self.trie.first[node]) + place
            if not any(self._follows(context, int(self.trie.word[child])) for context in longer):
                return child

    def _follows(self, node: int, word: int) -> bool:
        """Whether a context has the word itself, so that backing off must not draw it."""
        words = self.trie.word[self.trie.first[node] : self.trie.first[node + 1]]
        place = int(words.searchsorted(word))
        return place < len(words) and int(words[place]) == word

    def _chances(self, node: int) -> list[float]:
        """Cumulative probabilities of the words of a context."""
        if node not in self._cumulated:
            span = self.trie.log_prob[self.trie.first[node] : self.trie.first[node + 1]].astype(float)
            self._cumulated[node] = list(accumulate(np.exp(span).tolist()))
        return self._cumulated[node]
