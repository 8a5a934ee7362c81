"""Interpolated modified Kneser-Ney estimation.

Source: Chen & Goodman 1998, section 4.1.6; discounts by their equation 26. Cut-offs are applied after discounting as in
Heafield et al. 2013: the probability of dropped n-grams goes to the back-off weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.lm.arpa_rows import ABSENT_LOG10, LN10
from model.lm.trie import START_ID, NgramTable
from model.machine.compiled import DoubleArray, IntArray
from tutti_asr_lab.training.language_model.counting import NgramCounts, Places

# Discounts if the counts of counts do not determine any (a text of a few lines, generated text), as in KenLM.
_FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])


def estimate(counts: Sequence[NgramCounts], min_counts: Sequence[int] = ()) -> list[NgramTable]:
    """Estimate a back-off model; the probabilities after every context sum to 1.

    `min_counts[n - 1]` is the lowest count of n-grams to keep; the last value applies to all higher orders.
    Raises: ValueError if `min_counts` decreases with the order.
    """
    least = [*min_counts, *[min_counts[-1] if min_counts else 1] * len(counts)][: len(counts)]
    if least != sorted(least):
        raise ValueError(f"least counts {least} must not decrease with the length of the n-grams")
    tables: list[NgramTable] = []
    probability = _unigrams(_adjusted(counts, 0))
    kept = np.arange(len(probability))  # every word stays
    for n in range(1, len(counts)):
        above = counts[n]
        mass, weight, keep = _discounted(above, _adjusted(counts, n), len(counts[n - 1].ids), least[n])
        tables.append(_table(counts[n - 1].ids[kept], probability[kept], weight[kept]))
        probability = mass + weight[above.parent] * probability[above.suffix]
        kept = keep
    tables.append(_table(counts[-1].ids[kept], probability[kept], np.ones(len(kept))))
    unigrams = tables[0]
    unigrams.log_prob[START_ID] = ABSENT_LOG10 * LN10  # always given, never predicted
    return tables


def discounts(adjusted: Places) -> DoubleArray:
    """Discounts for counts of 0, 1, 2, and 3 or more."""
    n1, n2, n3, n4 = (int((adjusted == k).sum()) for k in range(1, 5))
    if not all((n1, n2, n3, n4)):
        return _FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return found if (found[1:] > 0).all() else _FALLBACK


def _adjusted(counts: Sequence[NgramCounts], n: int) -> Places:
    """Counts of the longest n-grams and of those after `<s>`; for others the number of distinct words before them."""
    table = counts[n]
    if n == len(counts) - 1:
        return table.count
    before = np.bincount(counts[n + 1].suffix, minlength=len(table.ids))
    return np.where(table.ids[:, 0] == START_ID, table.count, before)


def _unigrams(adjusted: Places) -> DoubleArray:
    """Probabilities of words, interpolated with a uniform distribution over all words but `<s>`."""
    counts = adjusted.copy()
    counts[START_ID] = 0
    off = discounts(counts)[np.minimum(counts, 3)]
    total = counts.sum()
    gamma = off.sum() / total if total else 1.0
    equal = np.full(len(counts), 1 / (len(counts) - 1))
    equal[START_ID] = 0.0
    smoothed: DoubleArray = (counts - off) / max(total, 1) + gamma * equal
    return smoothed


def _discounted(
    table: NgramCounts, adjusted: Places, contexts: int, least: int
) -> tuple[DoubleArray, DoubleArray, Places]:
    """Discounted probability of each n-gram, back-off weight of each context, and indices of the n-grams to keep."""
    off = discounts(adjusted)[np.minimum(adjusted, 3)]
    total = np.bincount(table.parent, adjusted, contexts)
    share: DoubleArray = (adjusted - off) / total[table.parent]
    share[table.count < least] = 0.0
    weight = np.asarray(1.0 - np.bincount(table.parent, share, contexts), np.float64)
    return share, weight, np.flatnonzero(table.count >= least).astype(np.int64)


def _table(ids: IntArray, probability: DoubleArray, weight: DoubleArray) -> NgramTable:
    with np.errstate(divide="ignore"):  # `<s>` is set by the caller
        return NgramTable(ids, np.log(probability).astype(np.float32), np.log(weight).astype(np.float32))
