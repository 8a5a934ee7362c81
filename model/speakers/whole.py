"""Speakers of a whole recording: average linkage over all its vectors, bounded for hours of audio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
MERGE = 0.65
"""Least similarity of two groups that are one speaker."""
BLOCK = 1_500
"""Vectors that are grouped at a time, ten minutes of voice; groups of all blocks are grouped then."""


def speakers_of_recording(
    vectors: NDArray[np.float32], spans_s: NDArray[np.float64], minimum: int = 1, maximum: int = 8
) -> Labels:
    """Return the speaker of each vector (N, 256) with its span (N, 2) of seconds, as (N,) numbers from 0.

    Numbers are in order of first appearance; at least `minimum` speakers if there are as many vectors, at most
    `maximum`.
    """
    del spans_s
    sums = np.rint(vectors.astype(np.float64) * 16_384).astype(np.int64)
    labels = np.arange(len(sums))
    for first in range(0, len(sums), BLOCK) if len(sums) > BLOCK else ():
        part = slice(first, first + BLOCK)
        labels[part] = first + _grouped(sums[part], minimum, BLOCK // 20)
    labels = _in_order(labels)
    groups = np.zeros((int(labels.max(initial=-1)) + 1, sums.shape[1]), np.int64)
    np.add.at(groups, labels, sums)
    return _in_order(_grouped(groups, minimum, maximum)[labels])


def _grouped(sums: NDArray[np.int64], minimum: int, maximum: int) -> Labels:
    """Merge the two groups with the most similar means until they are too far apart; return the group of each."""
    labels, totals = np.arange(len(sums)), sums.astype(np.float64)  # exact: below 2 ** 53
    alive = np.ones(len(sums), np.bool_)
    while alive.sum() > max(1, minimum):
        norms = np.sqrt(np.einsum("ij,ij->i", totals, totals))
        scores = (totals @ totals.T) / np.maximum(np.outer(norms, norms), 1)
        scores[~alive] = scores[:, ~alive] = -2
        np.fill_diagonal(scores, -2)
        a, b = sorted(divmod(int(scores.argmax()), len(sums)))
        if scores[a, b] < MERGE and alive.sum() <= maximum:
            break
        totals[a] += totals[b]
        alive[b] = False
        labels[labels == b] = a
    return labels


def _in_order(labels: Labels) -> Labels:
    """Renumber by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)
