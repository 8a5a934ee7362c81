"""Division of vectors into voices: merge the two nearest groups until all are far apart.

Nearness is by Ward's rule, the growth of the sum of squared distances, less a part that a voice's own changes explain.
So small groups join others easily, and voices with much speech stay apart if their means do. Products of sums are
integers, so the result is the same on every processor. Source: Ward 1963.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.speakers.vectors import ONE, Floats, Integers

Labels = NDArray[np.int64]


class Apart(NamedTuple):
    """When two groups of vectors are two voices: the more vectors, the farther apart are the farthest parts of one."""

    least: float
    """Squared distance of the means of two parts of one voice, without the next part."""
    more: float
    """Part of that distance for the square root of the number of all vectors."""
    far: float
    """Least growth, beyond that distance, by a merge of two voices."""


NEVER = Apart(0.0, 0.0, 0.0)
"""For groups whose number is given."""
NEAREST = 0.35
"""Most squared distance of the means of two parts of one voice."""


def _costs(products: Integers, squares: Floats, sizes: Floats, square: Any, size: Any, *, near: float) -> Floats:
    """Return how far groups are from others, from the products of their sums, the squares of their means and sizes."""
    distances = squares + square - products * 2.0 / (sizes * size)
    return np.asarray((distances / float(ONE * ONE) - near) * (sizes * size / (sizes + size)))


def divided(products: Integers, counts: Integers, minimum: int, maximum: int, apart: Apart) -> Labels:
    """Return the cluster of each group, (N,) from 0 in the order of their first groups.

    `products` (N, N): of the sums of the groups' vectors. Clusters are at least `apart.far` apart, unless there are
    more than `maximum`; there are at least `minimum`.
    """
    near = min(NEAREST, apart.least + apart.more * math.sqrt(int(counts.sum())))  # sqrt is correctly rounded
    products, sizes, labels = products.copy(), counts.astype(np.float64), np.arange(len(counts))
    squares = products.diagonal() / (sizes * sizes)
    alive, left = np.ones(len(counts), np.bool_), len(counts)
    costs = _costs(products, squares, sizes, squares[:, None], sizes[:, None], near=near)
    np.fill_diagonal(costs, np.inf)
    while left > max(1, minimum):
        a, b = divmod(int(costs.argmin()), len(counts))  # a < b: the costs are symmetric
        if costs[a, b] >= apart.far and left <= maximum:
            break
        products[a] += products[b]
        products[:, a] += products[:, b]
        sizes[a] += sizes[b]
        squares[a] = products[a, a] / (sizes[a] * sizes[a])
        labels[labels == b] = a
        alive[a] = alive[b] = False
        row = np.where(alive, _costs(products[a], squares, sizes, squares[a], sizes[a], near=near), np.inf)
        costs[b] = costs[:, b] = np.inf
        costs[a] = costs[:, a] = row
        alive[a], left = True, left - 1
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
