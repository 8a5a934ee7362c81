"""Lookup in the language model: the log-probability of a word after a context, and loops over it.

Compiled, because the compiled beam search calls it, so arguments are arrays and numbers only.
Source: Katz 1987, back-off; SRILM's ngram-format(5), whose recursion is a loop here.
"""

from __future__ import annotations

import numpy as np

from model.machine.compiled import DoubleArray, FloatArray, IntArray, compiled_inline, entry_point

Node = int | np.int32

ROOT = 0


@compiled_inline
def lm_score(  # noqa: PLR0917 - compiled code has no keywords
    first: IntArray,
    word: IntArray,
    log_prob: FloatArray,
    backoff: FloatArray,
    suffix: IntArray,
    after: IntArray,
    state: Node,
    word_id: Node,
) -> tuple[np.float32, np.int32]:
    """Natural log-probability of `word_id` in `state`, and the state after it; of arrays or pointers.

    `state` is a node of `BackoffTrie`; its children are nodes `first[state]` to `first[state + 1] - 1`, sorted by
    `word`. The root has a child for every word, in order, so the loop ends there without a search.
    """
    penalty = np.float32(0.0)
    node = state
    child = first[ROOT] + word_id
    while node != ROOT:
        low, end = first[node], first[node + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if word[middle] < word_id:
                low = middle + 1
            else:
                high = middle
        if low < end and word[low] == word_id:
            child = low
            break
        penalty += backoff[node]
        node = suffix[node]
    return np.float32(penalty + log_prob[child]), np.int32(after[child])


@entry_point
def score_text(  # noqa: PLR0917
    first: IntArray,
    word: IntArray,
    log_prob: FloatArray,
    backoff: FloatArray,
    suffix: IntArray,
    after: IntArray,
    state: Node,
    word_ids: IntArray,
    out: FloatArray,
) -> Node:
    """Score a sequence of words (S,) into `out` (S,), starting in `state`; return the last state."""
    for i in range(len(word_ids)):
        out[i], state = lm_score(first, word, log_prob, backoff, suffix, after, state, word_ids[i])
    return state


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
