"""Trie of words over letters or phones: which symbols may follow a prefix, and the likeliest word with that prefix.

A node has a bit set of the symbols that may follow and the number of its first child; children are numbered
consecutively in the order of their symbols, so counting bits finds one. A table of all symbols would be twenty times as
large, and the beam search is bound by memory access.
Source: Bagwell 2000, "Ideal hash trees", for the counting of bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import FloatArray, IntArray, compiled_inline

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
_COLUMN = {letter: column for column, letter in enumerate(LETTERS)}
NO_WORD = -1

BITS = 64  # per machine word of a set

_ONE, _TWO, _FOUR, _BIT, _TOP_BYTE = (np.uint64(number) for number in (1, 2, 4, BITS - 1, BITS - 8))
_ODD, _LOW_PAIRS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_LOW_FOURS, _LOWEST_OF_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)

Sets = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SpellingTrie:
    """Trie as arrays; node 0 is the empty prefix.

    follows (nodes, W) uint64: bit c % 64 of number c // 64 is set where symbol c may follow; below (nodes,) int32: the
    first child; best (nodes,) float32: the largest unigram natural log-probability of the words at or below the node.
    """

    follows: Sets
    below: IntArray
    best: FloatArray


def build_spelling(
    spelled: Sequence[Sequence[int]], ids: IntArray, unigrams: FloatArray, symbols: int
) -> tuple[SpellingTrie, NDArray[np.int64], IntArray]:
    """Build the trie of spellings in symbols 0 to `symbols` - 1; spelling n, not empty, belongs to word `ids[n]`.

    Returns the trie, the node at which each spelling ends (N,), and the likeliest word at or below each node (nodes,):
    the first of equally likely ones, -1 if there is none.
    """
    lengths = np.array([len(each) for each in spelled], np.int64)
    rows = np.full((len(spelled), int(lengths.max(initial=0))), -1, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = np.fromiter(chain.from_iterable(spelled), np.int64)
    at = np.zeros(len(rows), np.int64)  # the current node of each spelling
    levels = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]  # parent and symbol of each node but the root
    likeliest, count = [_likeliest(ids, unigrams, at)], 1
    for depth in range(rows.shape[1]):
        going = np.flatnonzero(lengths > depth)
        keys, place = np.unique(at[going] * symbols + rows[going, depth], return_inverse=True)
        levels.append((keys // symbols, keys % symbols))
        likeliest.append(_likeliest(ids[going], unigrams, place))
        at[going] = count + place
        count += len(keys)
    above, last = (np.concatenate(parts) for parts in zip(*levels, strict=True))
    follows, below = np.zeros((count, -(-symbols // BITS)), np.uint64), np.zeros(count, np.int32)
    np.bitwise_or.at(follows, (above, last // BITS), _ONE << (last % BITS).astype(np.uint64))
    parents, first = np.unique(above, return_index=True)
    below[parents] = 1 + first
    words = np.concatenate(likeliest) if len(rows) else np.full(1, -1, np.int32)
    best = np.where(words < 0, np.float32(-np.inf), unigrams[words]).astype(np.float32)
    return SpellingTrie(follows, below, best), at, words


def _likeliest(ids: IntArray, unigrams: FloatArray, place: NDArray[np.int64]) -> IntArray:
    """Likeliest of the words `ids` (N,) at each node 0 to max(place)."""
    order = np.lexsort((-ids, unigrams[ids], place))
    last = np.flatnonzero(np.diff(place[order], append=-1))
    return ids[order[last]]


@compiled_inline
def next_spelling(follows: Sets, sets: int, below: IntArray, node: int, symbol: int) -> int:
    """Child of `node` by `symbol`, -1 if no word continues with it; `follows` (nodes * sets,)."""
    word, bit = symbol // BITS, np.uint64(symbol) & _BIT
    found = follows[node * sets + word]
    if not (found >> bit) & _ONE:
        return -1
    after = int(below[node]) + _bits(found & ((_ONE << bit) - _ONE))
    for before in range(word):
        after += _bits(follows[node * sets + before])
    return after


@compiled_inline
def _bits(x: np.uint64) -> int:
    """Number of set bits. Source: Warren, Hacker's Delight, 5-1; compilers turn it into one instruction."""
    x = x - ((x >> _ONE) & _ODD)
    x = (x & _LOW_PAIRS) + ((x >> _TWO) & _LOW_PAIRS)
    x = (x + (x >> _FOUR)) & _LOW_FOURS
    return int((x * _LOWEST_OF_BYTES) >> _TOP_BYTE)


@dataclass(frozen=True, slots=True)
class CharacterTrie:
    """Trie over a to z, then the apostrophe; `word` (nodes,) int32 is the word that ends at a node, or -1."""

    spelling: SpellingTrie
    word: IntArray


def build_characters(words: Sequence[str], unigrams: FloatArray) -> CharacterTrie:
    """Build the trie of the words spelled with `LETTERS`; words that differ in case count as one, the likelier."""
    spelled = {}
    for word_id in np.argsort(unigrams, kind="stable").tolist():  # ascending: a likelier word overwrites
        text = words[word_id].lower()
        if text and all(letter in _COLUMN for letter in text):
            spelled[text] = word_id
    ids = np.array(list(spelled.values()), np.int32)
    columns = [[_COLUMN[letter] for letter in text] for text in spelled]
    spelling, at, _ = build_spelling(columns, ids, unigrams, len(LETTERS))
    ends = np.full(len(spelling.best), NO_WORD, np.int32)
    ends[at] = ids
    return CharacterTrie(spelling, ends)
