"""Back-off trie: all n-grams of a model in flat arrays.

Node 0 is the root (the empty context), every n-gram is a node. Nodes are numbered breadth first and children are sorted
by word, so those of node i are `first[i]` to `first[i + 1] - 1`. All words are children of the root, in order: the node
of unigram w is 1 + w. Knows nothing about files or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.lm.score import ROOT
from model.machine.compiled import FloatArray, IntArray

Keys = NDArray[np.int64]

UNKNOWN_ID, START_ID, END_ID = 0, 1, 2
SPECIAL_WORDS = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True, slots=True)
class NgramTable:
    """All n-grams of one order: word ids (n, order) int32; natural logs of probability and back-off, (n,) float32."""

    ids: IntArray
    log_prob: FloatArray
    backoff: FloatArray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class BackoffTrie:
    """Arrays that `lm_score` reads, indexed by node as the module describes.

    first (nodes + 1,): first child; word (nodes,): last word, -1 for the root; log_prob and backoff (nodes,): natural
    logs; suffix (nodes,): the n-gram without its first word; after (nodes,): the shortest context that predicts the
    same as this n-gram.
    """

    order: int
    first: IntArray
    word: IntArray
    log_prob: FloatArray
    backoff: FloatArray
    suffix: IntArray
    after: IntArray

    @property
    def arrays(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray, IntArray]:
        """First six arguments of `lm_score`."""
        return self.first, self.word, self.log_prob, self.backoff, self.suffix, self.after


def build_trie(tables: Sequence[NgramTable]) -> BackoffTrie:
    """Build the trie from the tables of order 1 to N; table 1 must hold every word id once, in order.

    Contexts and suffixes that a pruned model lacks are added as nodes that change no probability.
    Raises: ValueError for a duplicate n-gram.
    """
    levels, missing = _closed_levels(tables)
    vocabulary = len(levels[0].ids)
    keys = _level_keys([level.ids for level in levels], vocabulary)
    starts = 1 + np.concatenate([[0], np.cumsum([len(level) for level in levels])])  # first node of each level
    nodes = int(starts[-1])
    word, suffix = np.full(nodes, -1, np.int32), np.zeros(nodes, np.int32)
    log_prob, backoff = np.zeros(nodes, np.float32), np.zeros(nodes, np.float32)
    first = np.full(nodes + 1, nodes, np.int32)
    first[0] = 1
    for n, level in enumerate(levels):
        span = slice(starts[n], starts[n + 1])
        word[span], log_prob[span], backoff[span] = level.ids[:, -1], level.log_prob, level.backoff
        if n == 0:
            continue
        suffix[span] = starts[n - 1] + find_rows(keys, level.ids[:, 1:], vocabulary)
        parent = starts[n - 1] + keys[n] // vocabulary  # ascending
        contexts = np.arange(starts[n - 1], starts[n])
        first[contexts] = starts[n] + np.searchsorted(parent, contexts)
        added = starts[n] + np.flatnonzero(missing[n])
        log_prob[added] = backoff[parent[missing[n]]] + log_prob[suffix[added]]  # as backing off computes it
    after = _states_after(first, backoff, suffix, int(starts[-2]))
    return BackoffTrie(len(levels), first, word, log_prob, backoff, suffix, after)


def find_rows(keys: Sequence[Keys], rows: IntArray, vocabulary: int) -> NDArray[np.int64]:
    """Index of each n-gram (n, k) within its level; all must exist."""
    index = rows[:, 0].astype(np.int64)
    for n in range(1, rows.shape[1]):
        index = np.searchsorted(keys[n], index * vocabulary + rows[:, n])
    return index


def sorted_rows(rows: IntArray, limit: int) -> NDArray[np.int64]:
    """Stable order of rows (n, k) by their columns, all of 0 to `limit` - 1; columns that fit are sorted as one number.

    Rows that are sorted for the most part, as those of a file and their contexts are, take a tenth of the time.
    """
    limit, keys = max(limit, 2), [rows[:, 0].astype(np.int64)]
    bound = limit
    for column in rows.T[1:]:
        if bound * limit > np.iinfo(np.int64).max:
            keys.append(column.astype(np.int64))
            bound = limit
        else:
            keys[-1] = keys[-1] * limit + column
            bound *= limit
    return np.lexsort(keys[::-1])


def _level_keys(levels: Sequence[IntArray], vocabulary: int) -> list[Keys]:
    """Ascending keys of each level, which is sorted by words: parent's index * vocabulary + last word."""
    keys = [levels[0][:, 0].astype(np.int64)]
    for ids in levels[1:]:
        keys.append(find_rows(keys, ids[:, :-1], vocabulary) * vocabulary + ids[:, -1])
    return keys


def _closed_levels(tables: Sequence[NgramTable]) -> tuple[list[NgramTable], list[NDArray[np.bool_]]]:
    """Sorted levels with every context and suffix present, and a mask of the rows that were added."""
    vocabulary = len(tables[0])
    levels: list[NgramTable] = []
    missing: list[NDArray[np.bool_]] = []
    wanted = np.zeros((0, len(tables)), np.int32)
    for table in reversed(tables):
        ids = np.concatenate([table.ids, wanted])
        original = np.arange(len(ids)) < len(table)
        order = sorted_rows(np.column_stack([ids, ~original]), vocabulary)  # by words, a given row before an added one
        ids, original = ids[order], original[order]
        same = np.zeros(len(ids), np.bool_)
        same[1:] = (ids[1:] == ids[:-1]).all(axis=1)
        if (same & original).any():
            raise ValueError(f"duplicate {ids.shape[1]}-gram, word ids {ids[same & original][0].tolist()}")
        chosen = order[~same]
        levels.insert(0, _padded(table, ids[~same], chosen))
        missing.insert(0, ~original[~same])
        wanted = np.concatenate([ids[~same][:, :-1], ids[~same][:, 1:]])
    return levels, missing


def _padded(table: NgramTable, ids: IntArray, chosen: NDArray[np.int64]) -> NgramTable:
    log_prob, backoff = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32)
    original = chosen < len(table)
    log_prob[original], backoff[original] = table.log_prob[chosen[original]], table.backoff[chosen[original]]
    return NgramTable(np.ascontiguousarray(ids), log_prob, backoff)


def _states_after(first: IntArray, backoff: FloatArray, suffix: IntArray, longest: int) -> IntArray:
    """Context of the next word for each node; nodes from `longest` on are never a context themselves.

    A context without children and without a back-off weight predicts the same as its suffix.
    """
    after = np.arange(len(suffix), dtype=np.int32)
    idle = (np.diff(first) == 0) & (backoff == 0)
    idle[longest:] = True
    idle[ROOT] = False
    while (going := idle[after]).any():
        after[going] = suffix[after[going]]
    return after
