"""Lookup in the language model: the log-probability of a word after a context, and loops over it.

Compiled, because the compiled beam search calls it, so arguments are arrays and numbers only.
Source: Katz 1987, back-off; SRILM's ngram-format(5), whose recursion is a loop here.
"""

from __future__ import annotations

import numpy as np

from model.machine.compiled import FloatArray, IntArray, compiled_inline, entry_point

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
