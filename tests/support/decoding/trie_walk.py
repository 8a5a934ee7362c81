"""Lookup in a trie of spellings by the compiled function of the beam search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.lm.spelling import Sets, SpellingTrie, next_spelling
from model.machine.compiled import IntArray, LongArray, entry_point


@entry_point
def _walk(follows: Sets, sets: int, below: IntArray, symbols: LongArray) -> int:
    node = 0
    for symbol in symbols:
        if node >= 0:
            node = next_spelling(follows, sets, below, node, symbol)
    return node


def walk(trie: SpellingTrie, symbols: Sequence[int]) -> int:
    """Node of a prefix, -1 if no word has it."""
    return int(_walk(trie.follows.ravel(), trie.follows.shape[1], trie.below, np.array(symbols, np.int64)))
