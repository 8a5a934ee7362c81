"""Division of vectors into voices: merge the two nearest groups until all are far apart.

Nearness is by Ward's rule, the growth of the sum of squared distances, less a part that a voice's own changes explain,
`NEAR` of squared distance. So small groups join others easily, and voices with much speech stay apart if their means
do. Products of sums are integers, so the result is the same on every processor. Source: Ward 1963.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.speakers.vectors import ONE, Floats, Integers

NEAR = 0.3
"""Squared distance of the means of two parts of one voice."""
FAR = 2.5
"""Least growth, beyond that, by a merge of two voices."""

Labels = NDArray[np.int64]


def costs_of(
    products: Integers, squares: Integers, counts: Integers, square: int, count: int, *, near: float
) -> Floats:
    """Return how far one group is from each of the others, (N,).

    `products` (N,): of the one's sum with the others'; `squares`, `counts` (N,): of the others; `square`, `count`: of
    the one.
    """
    sizes = counts.astype(np.float64)
    distances = squares / (sizes * sizes) + square / float(count * count) - 2.0 * products / (sizes * count)
    return np.asarray((distances / float(ONE * ONE) - near) * (sizes * count / (sizes + count)))


def divided(products: Integers, counts: Integers, minimum: int, maximum: int, near: float | None = None) -> Labels:
    """Return the cluster of each group, (N,) from 0 in the order of their first groups.

    `products` (N, N): of the sums of the groups' vectors. Clusters are at least `FAR` apart, unless there are more
    than `maximum`; there are at least `minimum`. `near`: instead of `NEAR`.
    """
    near = NEAR if near is None else near
    products, counts, labels = products.copy(), counts.copy(), np.arange(len(counts))
    every = np.arange(len(counts))
    squares = products.diagonal().copy()
    costs = np.stack(
        [costs_of(products[a], squares, counts, int(squares[a]), int(counts[a]), near=near) for a in every]
    )
    costs[every, every] = np.inf
    nearest = costs.argmin(axis=1)
    best = costs[every, nearest]
    alive, left = np.ones(len(counts), np.bool_), len(counts)
    while left > max(1, minimum):
        a = int(best.argmin())
        if best[a] >= FAR and left <= maximum:
            break
        a, b = sorted((a, int(nearest[a])))
        products[a] += products[b]
        products[:, a] += products[:, b]
        counts[a] += counts[b]
        squares[a] = products[a, a]
        labels[labels == b] = a
        alive[b], best[b], left = False, np.inf, left - 1
        costs[b] = costs[:, b] = np.inf
        row = np.where(
            alive, costs_of(products[a], squares, counts, int(squares[a]), int(counts[a]), near=near), np.inf
        )
        row[a] = np.inf
        costs[a] = costs[:, a] = row
        stale = np.flatnonzero(alive & ((nearest == a) | (nearest == b)))
        nearest[stale] = costs[stale].argmin(axis=1)
        nearest[a] = row.argmin()
        best[stale], best[a] = costs[stale, nearest[stale]], row[nearest[a]]
        closer = np.flatnonzero(alive & (row < best))
        nearest[closer], best[closer] = a, row[closer]
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
