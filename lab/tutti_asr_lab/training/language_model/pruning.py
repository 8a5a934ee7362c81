"""Entropy pruning: removes the n-grams whose removal changes the model least.

Source: Stolcke 1998, "Entropy-based pruning of backoff language models", equations 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.lm.score import ROOT
from model.lm.trie import END_ID, START_ID, BackoffTrie, NgramTable, build_trie
from model.machine.compiled import DoubleArray
from tutti_asr_lab.training.language_model.mixture import leftovers, normalized
from tutti_asr_lab.training.language_model.trie_scores import chain_log_probs, find_nodes


def prune(tables: Sequence[NgramTable], threshold: float) -> list[NgramTable]:
    """Remove n-grams whose removal raises the perplexity by less than the fraction `threshold`; all words stay.

    Contexts of kept n-grams are kept too. Back-off weights are recomputed.
    """
    trie = build_trie(tables)
    rise = np.expm1(_divergences(trie))
    kept = list(tables)
    needed = np.zeros(len(trie.word), np.bool_)
    for n in range(len(tables) - 1, 0, -1):
        nodes = find_nodes(trie.first, trie.word, tables[n].ids)
        keep = (rise[nodes] >= threshold) | needed[nodes]
        kept[n] = _rows(tables[n], keep)
        if n > 1:
            needed[find_nodes(trie.first, trie.word, kept[n].ids[:, :-1])] = True
    return normalized(kept)


def _divergences(trie: BackoffTrie) -> DoubleArray:
    """Relative entropy, in nats, between the model and the model without an n-gram, for each node."""
    nodes = len(trie.word)
    parent = np.zeros(nodes, np.int32)
    parent[1:] = np.repeat(np.arange(nodes), np.diff(trie.first))
    left, left_shorter = (mass[parent] for mass in leftovers(trie))
    own_log, shorter_log = trie.log_prob.astype(np.float64), trie.log_prob[trie.suffix].astype(np.float64)
    own = np.exp(own_log)
    before = np.log(left / left_shorter)
    after = np.log((left + own) / (left_shorter + np.exp(shorter_log)))
    moved = own * (shorter_log + after - own_log) + left * (after - before)
    chain = chain_log_probs(trie.word, trie.log_prob, parent, START_ID, END_ID)
    divergence: DoubleArray = -np.exp(chain[parent]) * moved
    divergence[ROOT] = 0.0
    return divergence


def _rows(table: NgramTable, keep: NDArray[np.bool_]) -> NgramTable:
    return NgramTable(table.ids[keep], table.log_prob[keep], table.backoff[keep])
