"""Speakers of a whole recording by all its vectors, bounded for hours of audio; the same on every processor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.speakers.online import best_path
from model.speakers.vectors import ONE, Integers, rounded, unit
from model.speakers.ward import Labels, divided

LEAST = 5
"""Vectors of a speaker: smaller groups are not speakers, unless there are no others."""
REFINED = 3
"""Times that vectors are assigned to the speakers' means and the means computed again."""
BLOCK = 1_500
"""Vectors that are grouped at a time, ten minutes of voice; the groups of all blocks are grouped then."""
GROUPS = 48
"""Most groups of a block."""


def speakers_of_recording(vectors: NDArray[np.float32], minimum: int = 1, maximum: int = 8) -> Labels:
    """Return the speaker of each vector (N, 256), in the order of time, as (N,) numbers from 0.

    Numbers are in order of first appearance. There are at least `minimum` speakers, if the vectors allow it, and at
    most `maximum`. The time is that of N * BLOCK similarities.
    """
    units = rounded(vectors)
    if not len(units):
        return np.zeros(0, np.int64)
    groups = np.zeros(len(units), np.int64)
    for first in range(0, len(units), BLOCK):
        part = units[first : first + BLOCK]
        every = np.ones(len(part), np.int64)
        groups[first : first + BLOCK] = divided(part @ part.T, every, GROUPS, GROUPS) + first
    totals, counts = _summed(units, groups)
    products = totals @ totals.T
    labels = divided(products, counts, 1, maximum)
    if labels.max() + 1 < minimum:
        labels = divided(products, counts, minimum, minimum, near=0.0)
    totals, counts = _summed(totals, labels, counts)
    order = np.argsort(-counts, kind="stable")
    means = np.stack([unit(total) for total in totals[order[: max(minimum, int((counts >= LEAST).sum()), 1)]]])
    for _ in range(REFINED):
        labels = np.array(best_path(np.rint(units @ means.T / ONE).astype(np.int64)), np.int64)
        means = np.stack([
            unit(units[labels == speaker].sum(axis=0)) if np.any(labels == speaker) else means[speaker]
            for speaker in range(len(means))
        ])  # fmt: skip
    return _in_order(labels)


def nearest(spans_s: NDArray[np.float64], start_s: float, end_s: float) -> int:
    """Return the index of the span (N, 2), N at least 1, whose middle is nearest to that of a word."""
    return int(np.abs(spans_s.mean(axis=1) - (start_s + end_s) / 2).argmin())


def _summed(totals: Integers, labels: Labels, counts: Integers | None = None) -> tuple[Integers, Integers]:
    """Return the sum of the rows with each label, and the sum of their counts."""
    names, places = np.unique(labels, return_inverse=True)
    sums, sizes = np.zeros((len(names), totals.shape[1]), np.int64), np.zeros(len(names), np.int64)
    np.add.at(sums, places, totals)
    np.add.at(sizes, places, 1 if counts is None else counts)
    return sums, sizes


def _in_order(labels: Labels) -> Labels:
    """Renumber by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)
