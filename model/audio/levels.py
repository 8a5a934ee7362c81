"""Levels of the audio in whole decibels, and silence by them, by compiled code: the same on every processor. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import ZERO, DoubleArray, compiled, compiled_inline, entry_point

SamplesArray = NDArray[np.int16]
ByteArray = NDArray[np.uint8]

# Source: loadtest/LOG.md, "2026-11-28: silence by the level of the audio, for forks (kept)".
ABOVE_FLOOR_DB = 9.0  # speech is at least this far above the lowest of the last levels
BELOW_LOUDEST_DB = 30.0  # silence is at least this far below the loudest level, which fades
CLICK_LEVELS = 1  # a run of at most this many loud levels is a click, not speech
LOUDEST, FADES, NUMBER, LOUD, SILENT, LOWEST, RECENT = range(7)
"""Places of a meter (`new_meter`): loudest level, what it fades by at each level, number of levels, of the present run
of loud ones, and of those since the last one of speech; lowest recent level, and from there on the recent levels."""
NO_LEVEL = 1e9
AT_16_KHZ = 6  # samples of a sum of the speech gate


def band_levels(samples: SamplesArray, count: int, half: int, limits: DoubleArray) -> bytes:
    """Return `count` levels of equal parts of (S,) int16, one byte each.

    The energy of a part is that of the changes between sums over `half` samples; its level is the number of `limits`,
    ascending, that it reaches. Sums are whole numbers, so they have no rounding.
    """
    levels = np.empty(count, np.uint8)
    # A copy is always writable and contiguous, so that the code is compiled for one type of array.
    write_levels(samples.copy(), half, limits, levels)
    return levels.tobytes()


def new_meter(recent: int, fades_db: float) -> DoubleArray:
    """Return a meter for `follow_silence`, which keeps this number of levels."""
    meter = np.full(RECENT + recent, NO_LEVEL)
    meter[:LOWEST] = 0.0, fades_db, 0.0, 0.0, 0.0
    return meter


def warm_up() -> None:
    """Compile the code, or load it from disk, so that the first stream need not wait."""
    band_levels(np.zeros(4, np.int16), 1, 2, np.ones(1))
    follow_silence(np.zeros(4, np.int16), 1, np.ones(1), new_meter(1, 0.0))


@entry_point
def write_levels(samples: SamplesArray, half: int, limits: DoubleArray, levels: ByteArray) -> None:
    """Write the levels of equal parts of `samples`, one for each place of `levels`."""
    size = len(samples) // len(levels)
    for number in range(len(levels)):
        part = samples[number * size : (number + 1) * size]
        # Where the length of a sum is a constant, the code takes a ninth of the time.
        energy = _energy(part, AT_16_KHZ) if half == AT_16_KHZ else _energy(part, half)
        levels[number] = _level_of(energy, limits)


@entry_point
def follow_silence(samples: SamplesArray, count: int, limits: DoubleArray, meter: DoubleArray) -> int:
    """Follow `count` equal parts of (S,) int16; return the number of levels since the last one of speech.

    Levels as in `write_levels`, of the changes from one sample to the next, which have no constant offset.
    """
    size, recent = len(samples) // count, len(meter) - RECENT
    for number in range(count):
        level = _level_of(_energy(samples[number * size : (number + 1) * size], 1), limits)
        place = RECENT + int(meter[NUMBER]) % recent
        left, meter[place] = meter[place], level
        meter[NUMBER] += 1
        if level <= meter[LOWEST]:
            meter[LOWEST] = level
        elif left == meter[LOWEST]:
            meter[LOWEST] = meter[RECENT:].min()
        meter[LOUDEST] = max(level, meter[LOUDEST] - meter[FADES])
        floor = max(1.0, meter[LOWEST])  # digital silence is lower than any room
        loud = level >= max(floor + ABOVE_FLOOR_DB, meter[LOUDEST] - BELOW_LOUDEST_DB)
        meter[LOUD] = meter[LOUD] + 1 if loud else 0
        meter[SILENT] = 0 if meter[LOUD] > CLICK_LEVELS else meter[SILENT] + 1
    return int(meter[SILENT])


@compiled_inline
def _energy(part: SamplesArray, half: int) -> int:
    """Return the energy of the changes between sums over `half` samples."""
    energy, before = ZERO, ZERO
    for number in range(len(part) // half):
        total = ZERO
        for at in range(half):
            total += part[number * half + at]
        if number > 0:
            energy += (total - before) * (total - before)
        before = total
    return energy


@compiled
def _level_of(energy: int, limits: DoubleArray) -> int:
    """Return the number of `limits` that the energy reaches."""
    low, high = ZERO, len(limits)
    while low < high:
        middle = (low + high) // 2
        if limits[middle] <= energy:
            low = middle + 1
        else:
            high = middle
    return low
