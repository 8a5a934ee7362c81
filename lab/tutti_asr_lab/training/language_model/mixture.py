"""Interpolation of several n-gram models over the same words into one, with weights tuned on a held-out text.

Source: Stolcke 2002, SRILM's static interpolation (`-mix-lm`): every n-gram of any model gets the weighted sum of
all models' probabilities, and back-off weights are recomputed so that probabilities sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.lm.score import score_text
from model.lm.trie import START_ID, BackoffTrie, NgramTable, build_trie, sorted_rows
from model.machine.compiled import DoubleArray, FloatArray, IntArray
from tutti_asr_lab.training.language_model.trie_scores import find_nodes, score_rows

EM_ROUNDS = 50
# Lower bound of the probability that the n-grams of a context leave for backing off.
_LEAST_MASS = 1e-6


def tune_weights(tries: Sequence[BackoffTrie], held_out: IntArray) -> DoubleArray:
    """Weights (models,) that maximize the likelihood of held-out sentences (S,), by expectation maximization.

    Unknown words are ignored: the probability of `<unk>` depends on the size of the vocabulary, not on the text.
    """
    likelihood = np.exp([token_log_probs(trie, held_out) for trie in tries])  # (models, S)
    counted = (held_out != START_ID) & (held_out != 0)
    likelihood = likelihood[:, counted].astype(np.float64)
    weights = np.full(len(tries), 1 / len(tries))
    for _ in range(EM_ROUNDS):
        shares = weights[:, None] * likelihood
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
    return weights


def token_log_probs(trie: BackoffTrie, tokens: IntArray) -> FloatArray:
    """Natural log-probability of each token (S,); sentences begin with `<s>`, whose value is 0."""
    out = np.empty(len(tokens), np.float32)
    starts = np.flatnonzero(tokens == START_ID)
    for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        out[begin] = 0.0
        score_text(*trie.arrays, int(trie.after[1 + START_ID]), tokens[begin + 1 : end], out[begin + 1 : end])
    return out


def mix(models: Sequence[Sequence[NgramTable]], weights: Sequence[float]) -> list[NgramTable]:
    """Interpolate models with the same words; the weights sum to 1."""
    tries = [build_trie(tables) for tables in models]
    tables = []
    for n in range(max(len(tables) for tables in models)):
        ids = _union([tables[n].ids for tables in models if n < len(tables)], len(models[0][0]))
        mixed = np.zeros(len(ids))
        for trie, weight in zip(tries, weights, strict=True):
            mixed += weight * np.exp(score_rows(*trie.arrays, ids).astype(np.float64))
        log_prob = np.log(mixed).astype(np.float32)
        if n == 0:
            log_prob[START_ID] = models[0][0].log_prob[START_ID]
        tables.append(NgramTable(ids, log_prob, np.zeros(len(ids), np.float32)))
    return normalized(tables)


def normalized(tables: Sequence[NgramTable]) -> list[NgramTable]:
    """Tables with back-off weights recomputed so that the probabilities after every context sum to 1."""
    done = [tables[0]]
    for n in range(1, len(tables)):
        trie = build_trie([*done, tables[n]])
        nodes = find_nodes(trie.first, trie.word, done[-1].ids)
        done[-1] = NgramTable(done[-1].ids, done[-1].log_prob, backoff_weights(trie)[nodes])
        done.append(tables[n])
    done[-1] = NgramTable(done[-1].ids, done[-1].log_prob, np.zeros(len(done[-1]), np.float32))
    return done


def backoff_weights(trie: BackoffTrie) -> FloatArray:
    """Log back-off weight of each node with which its probabilities sum to 1; 0 for nodes without n-grams."""
    left, left_shorter = leftovers(trie)
    return np.where(np.diff(trie.first) > 0, np.log(left / left_shorter), 0.0).astype(np.float32)


def leftovers(trie: BackoffTrie) -> tuple[DoubleArray, DoubleArray]:
    """Probability left over by each context's n-grams, in its own and in the shorter context's distribution."""
    nodes = len(trie.word)
    parent = np.repeat(np.arange(nodes), np.diff(trie.first))  # of nodes 1, 2, …
    own = np.exp(trie.log_prob[1:].astype(np.float64))
    shorter = np.exp(trie.log_prob[trie.suffix[1:]].astype(np.float64))
    left = 1.0 - np.bincount(parent, own, nodes)
    left_shorter = 1.0 - np.bincount(parent, shorter, nodes)
    return np.maximum(left, _LEAST_MASS), np.maximum(left_shorter, _LEAST_MASS)


def _union(parts: Sequence[IntArray], vocabulary: int) -> IntArray:
    ids = np.concatenate(parts)
    ids = ids[sorted_rows(ids, vocabulary)]
    different = np.ones(len(ids), np.bool_)
    different[1:] = (ids[1:] != ids[:-1]).any(axis=1)
    return np.ascontiguousarray(ids[different])
