"""Vocabulary as a trie over phones, for the beam search: homophones share a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.errors import LanguageModelError
from model.lm.cache import read_cache, write_cache
from model.lm.spelling import SpellingTrie, build_spelling
from model.machine.compiled import FloatArray, IntArray

MOST_ALIKE = 8
"""Homophones per node, among which the language model decides; less likely ones are left out."""

_SPELLING = ("follows", "below", "best")


@dataclass(frozen=True, slots=True)
class PhoneTrie:
    """Trie over phones, and the words at its nodes.

    first (nodes + 1,) int32: words `first[i]` to `first[i + 1] - 1` of `words` end at node i, the likeliest first;
    words (N,) int32: ids of the language model; likeliest (nodes,) int32: the likeliest word at or below the node.
    """

    spelling: SpellingTrie
    first: IntArray
    words: IntArray
    likeliest: IntArray

    @classmethod
    def mapped(cls, path: Path) -> PhoneTrie:
        """Load a file that `save` wrote. Raises: LanguageModelError, OSError."""
        _, arrays = read_cache(path)
        try:
            spelling = SpellingTrie(*(arrays[name] for name in _SPELLING))
            return cls(spelling, arrays["first"], arrays["words"], arrays["likeliest"])
        except KeyError as error:
            raise LanguageModelError(f"{path} is not a cached phone trie of this version: {error}") from error

    def save(self, path: Path) -> None:
        """Write a cache file of the arrays. Raises: OSError."""
        arrays = {name: getattr(self.spelling, name) for name in _SPELLING}
        write_cache(path, {}, arrays | {"first": self.first, "words": self.words, "likeliest": self.likeliest})

    @property
    def ranks(self) -> int:
        """Largest number of words that end at one node."""
        return int(np.diff(self.first).max())


def build_phones(
    words: Sequence[str],
    unigrams: FloatArray,
    spoken: Mapping[str, Sequence[Sequence[int]]],
    phones: int,
    most_alike: int = MOST_ALIKE,
) -> PhoneTrie:
    """Build the trie of all words that have pronunciations, `spoken`, in phones 0 to `phones` - 1.

    Of homophones the `most_alike` likeliest are kept. Raises: ValueError if no word has a pronunciation.
    """
    pairs = {(tuple(said), word_id) for word_id, word in enumerate(words) for said in spoken.get(word, ()) if said}
    if not pairs:
        raise ValueError("no word of the language model has a pronunciation")
    likely_first = sorted(pairs, key=lambda pair: (-float(unigrams[pair[1]]), pair[1]))
    ids = np.array([word_id for _, word_id in likely_first], np.int32)
    spelling, at, likeliest = build_spelling([pair[0] for pair in likely_first], ids, unigrams, phones)
    order = np.argsort(at, kind="stable")  # keeps the words of a node sorted by likelihood
    ends = at[order]
    rank = np.arange(len(ends)) - np.searchsorted(ends, ends)
    likely = rank < most_alike
    first = np.searchsorted(ends[likely], np.arange(len(likeliest) + 1)).astype(np.int32)
    return PhoneTrie(spelling, first, ids[order][likely], likeliest)
