"""The vocabulary as a trie over phones, for the beam search: words that sound alike share a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.compiled import FloatArray, IntArray

MOST_ALIKE = 8
"""Words that sound alike and are told apart by the language model; the less likely ones beyond are left out."""


@dataclass(frozen=True, slots=True)
class PhoneTrie:
    """Node 0 is the empty prefix.

    child (nodes, P) int32, -1 for none; first (nodes + 1,) int32, place in `words` of the first of those that end here,
    the likeliest first; words (N,) int32 of the language model; best (nodes,) float32, the largest unigram natural
    log-probability of the words at and below the node, and likeliest (nodes,) int32, the word that has it.
    """

    child: IntArray
    first: IntArray
    words: IntArray
    best: FloatArray
    likeliest: IntArray

    @property
    def ranks(self) -> int:
        """Most words that end at one node."""
        return int(np.diff(self.first).max())


def build_phones(
    words: Sequence[str], unigrams: FloatArray, spoken: Mapping[str, Sequence[Sequence[int]]], phones: int
) -> PhoneTrie:
    """Build the trie of all words that have pronunciations, of columns 0 to `phones` - 1.

    Raises: ValueError if no word has one.
    """
    pairs = [(tuple(each), word_id) for word_id, word in enumerate(words) for each in spoken.get(word, ()) if each]
    if not pairs:
        raise ValueError("no word of the language model has a pronunciation")
    pairs = sorted(set(pairs), key=lambda pair: (pair[0], -float(unigrams[pair[1]]), pair[1]))
    lengths = np.array([len(sounds) for sounds, _ in pairs])
    ids = np.array([word_id for _, word_id in pairs], np.int32)
    rows = np.full((len(pairs), int(lengths.max())), -1, np.int64)
    for row, (sounds, _) in zip(rows, pairs, strict=True):
        row[: len(sounds)] = sounds
    return _grown(rows, lengths, ids, unigrams, phones)


def _grown(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], ids: IntArray, unigrams: FloatArray, phones: int
) -> PhoneTrie:
    """Grow the trie a phone deeper at a time from sorted pronunciations (N, longest), padded with -1."""
    at = np.zeros(len(rows), np.int64)  # the node that each pronunciation has come to
    sources, columns, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 1
    best, likeliest = [unigrams[ids].max(keepdims=True)], [ids[[np.argmax(unigrams[ids])]]]
    for depth in range(rows.shape[1]):
        going = np.flatnonzero(lengths > depth)
        keys, place = np.unique(at[going] * phones + rows[going, depth], return_inverse=True)
        order = np.lexsort((-ids[going], unigrams[ids[going]], place))  # of each node, the likeliest word last
        last = order[np.flatnonzero(np.diff(place[order], append=len(keys)))]
        best.append(unigrams[ids[going[last]]])
        likeliest.append(ids[going[last]])
        sources.append(keys // phones)
        columns.append(keys % phones)
        at[going] = count + place
        count += len(keys)
    child = np.full((count, phones), -1, np.int32)
    child[np.concatenate(sources), np.concatenate(columns)] = np.arange(1, count)
    order = np.argsort(at, kind="stable")  # the words of a node stay in order: the likeliest first
    ends = at[order]
    rank = np.arange(len(ends)) - np.searchsorted(ends, ends)
    kept = rank < MOST_ALIKE
    first = np.searchsorted(ends[kept], np.arange(count + 1)).astype(np.int32)
    return PhoneTrie(child, first, ids[order][kept], np.concatenate(best).astype(np.float32), np.concatenate(likeliest))
