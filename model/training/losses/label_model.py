"""Trigram of labels (letters or phones) of the training texts: how likely a label sequence is without any sound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DISCOUNT = 0.5  # taken from each count for what was not seen; absolute discounting, Ney et al. 1994


def label_trigram(sequences: Iterable[Sequence[int]], labels: int) -> Tensor:
    """P(c | a, b) at [b, a, c], (K, K, K) float32 with K = labels + 1, from sequences of labels 1 to `labels`.

    Index 0 is the beginning as a or b, and the end as c. Interpolated with bigrams and unigrams of how many contexts a
    label follows (Kneser and Ney 1995).
    """
    counts = np.zeros((labels + 1,) * 3)
    for sequence in sequences:
        before, last = 0, 0
        for label in (*sequence, 0):
            counts[before, last, label] += 1
            before, last = last, label
    contexts = (counts > 0).sum(0).astype(np.float64)  # (K, K)
    singles = contexts.sum(0) + DISCOUNT
    pairs = _discounted(contexts, singles / singles.sum())
    triples = _discounted(counts, pairs)
    return torch.from_numpy(triples.transpose(1, 0, 2).astype(np.float32)).contiguous()


def _discounted(counts: NDArray[np.float64], lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative frequencies over the last axis, `lower` for what the discount leaves."""
    total, kinds = counts.sum(-1, keepdims=True), (counts > 0).sum(-1, keepdims=True)
    seen = (np.maximum(counts - DISCOUNT, 0) + DISCOUNT * kinds * lower) / np.maximum(total, 1)
    return np.where(total > 0, seen, lower)
