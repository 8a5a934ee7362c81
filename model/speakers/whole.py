"""Speakers of a whole recording by all its vectors, bounded for hours of audio; the same on every processor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.speakers.online import begins, best_path
from model.speakers.vectors import ONE, Integers, rounded, unit
from model.speakers.ward import NEVER, Apart, Labels, divided

APART = Apart(least=0.05, more=0.0175, far=3.5)
LEAST = 5
"""Vectors of a speaker: smaller groups are not speakers, unless there are no others."""
TOGETHER = 5
"""Successive vectors without a pause that are grouped as one."""
REFINED = 3
"""Times that vectors are assigned to the speakers' means and the means computed again."""
BLOCK = 300
"""Runs of vectors that are grouped at a time, about ten minutes; the groups of all blocks are grouped then."""
GROUPS = 48
"""Most groups of a block."""


def speakers_of_recording(
    vectors: NDArray[np.float32], spans_s: NDArray[np.float64], minimum: int = 1, maximum: int = 8
) -> Labels:
    """Return the speaker of each vector (N, 256), in the order of time, as (N,) numbers from 0.

    `spans_s` (N, 2): start and end of each. Numbers are in order of first appearance. There are at least `minimum`
    speakers, if the vectors allow it, and at most `maximum`.
    """
    units = rounded(vectors)
    if not len(units):
        return np.zeros(0, np.int64)
    after_pause = begins(spans_s)
    totals, counts = _summed(units, _runs(after_pause))
    groups = np.zeros(len(counts), np.int64)
    for first in range(0, len(counts), BLOCK):
        part = slice(first, first + BLOCK)
        groups[part] = divided(totals[part] @ totals[part].T, counts[part], GROUPS, GROUPS, APART) + first
    totals, counts = _summed(totals, groups, counts)
    totals, counts = _summed(totals, _voices(totals, counts, minimum, maximum), counts)
    order = np.argsort(-counts, kind="stable")
    totals = totals[order[: max(minimum, int((counts >= LEAST).sum()), 1)]]
    labels = np.zeros(len(units), np.int64)
    for _ in range(REFINED):
        means = np.stack([unit(total) for total in totals])
        labels = np.array(best_path(np.rint(units @ means.T / ONE).astype(np.int64), after_pause), np.int64)
        totals, counts = _summed(units, labels)
        totals, _ = _summed(totals, _voices(totals, counts, minimum, maximum))
    return _in_order(labels)


def nearest(spans_s: NDArray[np.float64], start_s: float, end_s: float) -> int:
    """Return the index of the span (N, 2), N at least 1, whose middle is nearest to that of a word."""
    return int(np.abs(spans_s.mean(axis=1) - (start_s + end_s) / 2).argmin())


def _runs(after_pause: NDArray[np.bool_]) -> Labels:
    """Return the number of the run of each vector: at most `TOGETHER` successive ones without a pause."""
    runs, length = np.zeros(len(after_pause), np.int64), 0
    for index in range(1, len(runs)):
        length = 0 if after_pause[index] else (length + 1) % TOGETHER
        runs[index] = runs[index - 1] + (length == 0)
    return runs


def _voices(totals: Integers, counts: Integers, minimum: int, maximum: int) -> Labels:
    products = totals @ totals.T
    labels = divided(products, counts, 1, maximum, APART)
    return labels if labels.max() + 1 >= minimum else divided(products, counts, minimum, minimum, NEVER)


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
