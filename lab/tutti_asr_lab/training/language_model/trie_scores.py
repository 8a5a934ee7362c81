"""Compiled loops over the trie of a language model, for making models."""

from __future__ import annotations

import numpy as np

from model.lm.score import ROOT, lm_score
from model.machine.compiled import DoubleArray, FloatArray, IntArray, entry_point


@entry_point
def score_rows(  # noqa: PLR0917
    first: IntArray,
    word: IntArray,
    log_prob: FloatArray,
    backoff: FloatArray,
    suffix: IntArray,
    after: IntArray,
    rows: IntArray,
) -> FloatArray:
    """Natural log-probability of the last word of each n-gram (n, k) given the others."""
    out = np.empty(len(rows), np.float32)
    for i in range(len(rows)):
        state = np.int32(ROOT)
        for k in range(rows.shape[1]):
            out[i], state = lm_score(first, word, log_prob, backoff, suffix, after, state, rows[i, k])
    return out


@entry_point
def find_nodes(first: IntArray, word: IntArray, rows: IntArray) -> IntArray:
    """Node of each n-gram (n, k); all must exist."""
    found = np.empty(len(rows), np.int32)
    for i in range(len(rows)):
        node = first[ROOT] + rows[i, 0]
        for k in range(1, rows.shape[1]):
            node = first[node] + np.searchsorted(word[first[node] : first[node + 1]], rows[i, k])
        found[i] = node
    return found


@entry_point
def chain_log_probs(word: IntArray, log_prob: FloatArray, parent: IntArray, start: int, end: int) -> DoubleArray:
    """Natural log-probability of each node's whole n-gram; that of the word `start` is taken to be that of `end`."""
    total = np.zeros(len(word), np.float64)
    for node in range(1, len(word)):  # parents have lower numbers
        if parent[node] == ROOT and word[node] == start:
            total[node] = log_prob[1 + end]
        else:
            total[node] = total[parent[node]] + log_prob[node]
    return total
