"""Levels of the audio: those of the definition, whatever the layout of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from model.audio.levels import SamplesArray, band_levels

LIMITS = np.array([10.0 ** (level / 10) for level in range(1, 120)])


def expected(samples: SamplesArray, count: int, half: int) -> bytes:
    """Return the levels by numpy."""
    size, sums = len(samples) // count, len(samples) // count // half
    halves = samples[: size * count].astype(np.float64).reshape(count, size)[:, : sums * half]
    band: NDArray[np.float64] = np.diff(halves.reshape(count, sums, half).sum(axis=2))  # (count, sums - 1)
    return bytes(LIMITS.searchsorted((band**2).sum(axis=1), side="right").tolist())


@pytest.mark.parametrize(("samples", "count", "half"), [(1_280, 4, 6), (640, 4, 3), (17_923, 56, 6), (5, 5, 2)])
@pytest.mark.parametrize("loudest", [0, 1, 300, 32_767])
def test_levels_are_those_of_the_definition(samples: int, count: int, half: int, loudest: int) -> None:
    audio = np.random.default_rng(samples).integers(-loudest, loudest + 1, samples).astype(np.int16)
    assert band_levels(audio, count, half, LIMITS) == expected(audio, count, half)


def test_the_loudest_square_wave_has_no_overflow() -> None:
    audio = np.tile(np.repeat(np.array([32_767, -32_768], np.int16), 6), 200)
    assert band_levels(audio, 4, 6, LIMITS) == expected(audio, 4, 6)


def test_the_layout_of_the_samples_does_not_matter() -> None:
    audio = np.random.default_rng(1).integers(-9_000, 9_000, 1_280).astype(np.int16)
    read_only = np.frombuffer(audio.tobytes(), np.int16)
    apart = np.repeat(audio, 2)[::2]
    wanted = band_levels(audio, 4, 6, LIMITS)
    assert band_levels(read_only, 4, 6, LIMITS) == band_levels(apart, 4, 6, LIMITS) == wanted
