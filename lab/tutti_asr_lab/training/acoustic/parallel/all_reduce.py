"""Sums of gradients in an order that does not depend on the number of processes: within a process, and all-reduce.

Floating-point addition is commutative but not associative. So the gradients of an update's M micro-batches, M a power
of two, are added along one binary tree over their numbers: each of P processes adds the subtree of its M/P consecutive
ones, and the processes add their sums pair by pair. Two algorithms do so, and a run measures from which buffer size on
the second one is faster.

Let N be the bytes of a buffer and P the number of processes, a power of two. **Recursive doubling** takes log2 P
rounds, in each of which every process sends N bytes. **Recursive halving and doubling** takes twice the rounds, but
every process sends 2 N (P - 1) / P bytes, the least that a sum needs: 0.58 times as many for 8 processes. It begins
with the nearest ranks, not with the farthest as is usual, because only then is every element added along the tree.

Not here: a ring. It adds the share of each process along a chain that begins at another process for every part of the
buffer, which is another order than the tree's from four processes on; and it sends the same 2 N (P - 1) / P bytes.
Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def is_power_of_two(number: int) -> bool:
    """Whether `number` is 1, 2, 4, …"""
    return number > 0 and number & (number - 1) == 0


class TreeSum:
    """Sum of 2^k buffers added one after another; holds at most k + 1 of them, and adds in place."""

    def __init__(self) -> None:
        self._partial: list[tuple[int, Tensor]] = []  # height of a subtree and its sum, higher ones first

    def add(self, buffer: Tensor) -> None:
        """Add the next buffer, which must not be used by the caller any more."""
        height = 0
        while self._partial and self._partial[-1][0] == height:
            _, left = self._partial.pop()
            buffer = left.add_(buffer)
            height += 1
        self._partial.append((height, buffer))

    def total(self) -> Tensor:
        """Sum of all buffers, whose number must be a power of two."""
        ((_, total),) = self._partial
        return total


Exchange = Callable[[Tensor, Tensor, int], None]  # send the first buffer to a rank, fill the second with its buffer
SIZES = (1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes at which a run compares both at its start
MEASURED = 3  # times each


def doubling(total: Tensor, rank: int, size: int, exchange: Exchange) -> None:
    """Sum the buffers (N,) of all `size` processes into `total`: every round exchanges and adds whole buffers."""
    other = torch.empty_like(total)
    step = 1
    while step < size:
        exchange(total, other, rank ^ step)
        total.add_(other)
        step *= 2


def halving(total: Tensor, rank: int, size: int, exchange: Exchange) -> None:
    """Sum the buffers (N,) of all `size` processes into `total`: exchange and add halves, then collect the parts.

    In the round of distance `step`, both processes of a pair own the same range. One keeps its first half, the other
    its second half, and each adds what its partner has of it. Afterwards the rounds are undone in reverse.
    """
    other = torch.empty_like(total[: total.numel() // 2 + 1])
    rounds: list[tuple[Tensor, Tensor]] = []  # what was kept, what was given away
    owned, step = total, 1
    while step < size:
        first, second = owned.tensor_split(2)
        kept, given = (second, first) if rank & step else (first, second)
        theirs = other[: kept.numel()]
        exchange(given, theirs, rank ^ step)
        kept.add_(theirs)
        rounds.append((kept, given))
        owned, step = kept, step * 2
    for kept, given in reversed(rounds):
        step //= 2
        exchange(kept, given, rank ^ step)


def crossover(seconds: Mapping[int, tuple[float, float]]) -> int | None:
    """Smallest measured size from which on halving is always faster; None if it is slower at the largest.

    `seconds`: by size in bytes, the time of doubling and that of halving.
    """
    found: int | None = None
    for size in sorted(seconds, reverse=True):
        by_doubling, by_halving = seconds[size]
        if by_halving >= by_doubling:
            break
        found = size
    return found
