"""Sums of floats in an order that does not depend on the number of processes.

Floating-point addition is commutative but not associative. So the gradients of an update's M micro-batches, M a power
of two, are added along one binary tree over their numbers: each of P processes adds the subtree of its M/P consecutive
ones, and the processes add their sums pair by pair (`model.training.acoustic.parallel.team`).
"""

from __future__ import annotations

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
