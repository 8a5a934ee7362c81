"""Levels of a band of the audio, in whole decibels, by compiled code: the same on every processor. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import ZERO, DoubleArray, entry_point

SamplesArray = NDArray[np.int16]
ByteArray = NDArray[np.uint8]


def band_levels(samples: SamplesArray, count: int, half: int, limits: DoubleArray) -> bytes:
    """Return `count` levels of equal parts of (S,) int16, one byte each.

    The energy of a part is that of the changes between sums over `half` samples; its level is the number of `limits`,
    ascending, that it reaches. Sums are whole numbers, so they have no rounding.
    """
    levels = np.empty(count, np.uint8)
    # A copy is always writable and contiguous, so that the code is compiled for one type of array.
    write_levels(samples.copy(), half, limits, levels)
    return levels.tobytes()


def warm_up() -> None:
    """Compile the code, or load it from disk, so that the first stream need not wait."""
    band_levels(np.zeros(4, np.int16), 1, 2, np.ones(1))


@entry_point
def write_levels(samples: SamplesArray, half: int, limits: DoubleArray, levels: ByteArray) -> None:
    """Write the levels of equal parts of `samples`, one for each place of `levels`."""
    size = len(samples) // len(levels)
    for part in range(len(levels)):
        begin, energy, before = part * size, ZERO, ZERO
        for number in range(size // half):
            total = ZERO
            for at in range(begin + number * half, begin + (number + 1) * half):
                total += samples[at]
            if number > 0:
                energy += (total - before) * (total - before)
            before = total
        low, high = ZERO, len(limits)
        while low < high:
            middle = (low + high) // 2
            if limits[middle] <= energy:
                low = middle + 1
            else:
                high = middle
        levels[part] = low
