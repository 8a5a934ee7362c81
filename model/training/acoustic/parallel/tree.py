"""Sums of floats in an order that does not depend on how many processes share the work.

Addition of floats is commutative to the bit and not associative. So the gradients of an update's M micro-batches, a
power of two, are added along one binary tree over their numbers: a process that holds M/P neighbours adds the subtree
over them, and the processes add their sums pair by pair (`model.training.acoustic.parallel.team`).
"""

from __future__ import annotations

from torch import Tensor


def is_power_of_two(number: int) -> bool:
    """Whether it is 1, 2, 4, …"""
    return number > 0 and number & (number - 1) == 0


class TreeSum:
    """The sum of 2^k buffers given one after the other; holds k + 1 of them at most, and adds in place."""

    def __init__(self) -> None:
        self._partial: list[tuple[int, Tensor]] = []  # height of a subtree and its sum, higher ones first

    def add(self, buffer: Tensor) -> None:
        """Take the next one; it belongs to the sum from now on."""
        height = 0
        while self._partial and self._partial[-1][0] == height:
            _, left = self._partial.pop()
            buffer = left.add_(buffer)
            height += 1
        self._partial.append((height, buffer))

    def total(self) -> Tensor:
        """The sum of all, whose number must have been a power of two."""
        ((_, total),) = self._partial
        return total
