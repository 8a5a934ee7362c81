"""Telephone line for training: 8 kHz, optionally a narrower band, and G.711 codes, back at the network's sample rate.

The same steps as those of a server with a caller at 8 kHz: with other ones, such as codes at 16 kHz, the bands above
4 kHz hold noise in training and silence in calls (model/LOG.md).
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import soxr
from numpy.typing import NDArray

Law = Literal["mulaw", "alaw"]
LAWS: tuple[Law, Law] = ("mulaw", "alaw")
LINE_RATE_HZ = 8_000
SLOPE_HZ = 200.0  # from full to no amplitude at an edge of the band; those of real filters are 100 to 600 Hz wide
FULL_SCALE = 32_768


def through_line(
    pcm: NDArray[np.float32], sample_rate: int, law: Law, band_hz: tuple[float, float] | None
) -> NDArray[np.float32]:
    """Pass float PCM in [-1, 1] through a line, (S,) -> (S,); `band_hz`: lower and upper edge of a filter before it."""
    line = soxr.resample(pcm, sample_rate, LINE_RATE_HZ, quality="HQ")
    if band_hz is not None:
        line = band_pass(line, LINE_RATE_HZ, *band_hz)
    wide = soxr.resample(companded(line * FULL_SCALE, law), LINE_RATE_HZ, sample_rate, quality="HQ") / FULL_SCALE
    out = np.zeros(len(pcm), np.float32)
    out[: len(wide)] = wide[: len(pcm)]
    return out


def band_pass(pcm: NDArray[np.float32], sample_rate: int, low_hz: float, high_hz: float) -> NDArray[np.float32]:
    """Keep a band, (S,) -> (S,): half of the amplitude at its edges, linear slopes of `SLOPE_HZ` around them."""
    hz = np.fft.rfftfreq(len(pcm), 1 / sample_rate)
    gain = np.clip((hz - low_hz) / SLOPE_HZ + 0.5, 0, 1) * np.clip((high_hz - hz) / SLOPE_HZ + 0.5, 0, 1)
    return np.asarray(np.fft.irfft(np.fft.rfft(pcm) * gain, len(pcm)), np.float32)


def companded(pcm: NDArray[np.float32], law: Law) -> NDArray[np.float32]:
    """Replace each 16-bit sample value by the nearest one that has a code, (S,) -> (S,)."""
    values = code_values(law)
    return values[np.searchsorted((values[1:] + values[:-1]) / 2, pcm)]


@cache
def code_values(law: Law) -> NDArray[np.float32]:
    """Return the 16-bit sample values that have a code, rising. Source: ITU-T G.711, tables 1 and 2."""
    segment, step = np.arange(8)[:, None], np.arange(16)  # (8, 1), (16,)
    if law == "mulaw":
        magnitudes = 4 * (((33 + 2 * step) << segment) - 33)  # (8, 16)
    else:
        magnitudes = np.where(segment == 0, 8 * (2 * step + 1), (8 * (2 * step + 33)) << np.maximum(segment - 1, 0))
    return np.unique(np.concatenate([-magnitudes.ravel(), magnitudes.ravel()])).astype(np.float32)
