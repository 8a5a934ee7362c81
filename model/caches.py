"""How fast this machine gives back what it has just read: whether the weights stay in its caches between two steps.

Guests of one host share its last cache. When the others use it up, each step reads its weights from memory, and takes
several times as long: the commonest reason why one hour is slower than another.
"""

from __future__ import annotations

import time

import numba
import numpy as np

from model.network import Network

READS = 100_000
ROUNDS = 9
SLOW_NS = 60.0
"""Between a last cache, 10 to 40 ns, and memory, 80 and more."""


def weight_bytes(network: Network) -> int:
    """What a step reads, at the network's precision."""
    return sum(each.numel() * each.element_size() for each in network.state_dict().values())


def read_ns(size: int) -> list[float]:
    """Time of one read from `size` bytes in nanoseconds, in rounds that follow one another.

    They are read again and again, in an order that cannot be foreseen.
    """
    chain = _chain(size)
    _follow(chain, len(chain))  # compiles, and brings it in
    found: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        _follow(chain, READS)
        found.append((time.perf_counter_ns() - began) / READS)
    return found


def _chain(size: int) -> np.ndarray:
    """Places, each of which names the next: one cycle through all of them, by chance."""
    order = np.random.default_rng(1).permutation(size // 8)
    chain = np.empty(len(order), np.int64)
    chain[order] = np.roll(order, -1)
    return chain


@numba.njit
def _follow(chain: np.ndarray, reads: int) -> int:
    at = 0
    for _ in range(reads):
        at = chain[at]
    return at
