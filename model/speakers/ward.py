"""Division of vectors into voices: merge the two nearest groups until all are far apart.

Nearness is by Ward's rule, the growth of the sum of squared distances, less a part that a voice's own changes explain,
`NEAR` of squared distance. So small groups join others easily, and voices with much speech stay apart if their means
do. Products of sums are integers, so the result is the same on every processor. Source: Ward 1963.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.speakers.vectors import ONE, Floats, Integers

NEAR = 0.25
"""Squared distance of the means of two parts of one voice."""
FAR = 2.0
"""Least growth, beyond that, by a merge of two voices."""

Labels = NDArray[np.int64]


def _costs(products: Integers, counts: Integers, rows: Integers, near: float) -> Floats:
    """Return how far the groups in `rows` (R,) are from all, (R, N), from the products and counts of all."""
    sizes = counts.astype(np.float64)
    squares, some = products.diagonal() / (sizes * sizes), sizes[rows, None]
    distances = squares + squares[rows, None] - 2.0 * products[rows] / (sizes * some)
    return np.asarray((distances / float(ONE * ONE) - near) * (sizes * some / (sizes + some)))


def divided(products: Integers, counts: Integers, minimum: int, maximum: int, near: float = NEAR) -> Labels:
    """Return the cluster of each group, (N,) from 0 in the order of their first groups.

    `products` (N, N): of the sums of the groups' vectors. Clusters are at least `FAR` apart, unless there are more
    than `maximum`; there are at least `minimum`. `near`: as `NEAR`.
    """
    products, counts, labels = products.copy(), counts.copy(), np.arange(len(counts))
    every, alive, left = np.arange(len(counts)), np.ones(len(counts), np.bool_), len(counts)
    costs = _costs(products, counts, every, near)
    costs[every, every] = np.inf
    while left > max(1, minimum):
        a, b = divmod(int(costs.argmin()), len(counts))  # a < b: the costs are symmetric
        if costs[a, b] >= FAR and left <= maximum:
            break
        products[a] += products[b]
        products[:, a] += products[:, b]
        counts[a] += counts[b]
        labels[labels == b] = a
        alive[b], left = False, left - 1
        row = np.where(alive, _costs(products, counts, every[a : a + 1], near)[0], np.inf)
        row[a] = np.inf
        costs[b] = costs[:, b] = np.inf
        costs[a] = costs[:, a] = row
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
