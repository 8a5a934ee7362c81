"""Whisper's log-mel features of exactly `SAMPLES` of audio, as published turn models read them.

The samples are scaled to mean 0 and variance 1 over the whole window; then a power spectrum of 400 samples every 160,
80 triangular filters on Slaney's mel scale with equal areas, logarithms that end 8 below the greatest one.
Source: transformers 4.57, `WhisperFeatureExtractor` with chunk_length 8 and do_normalize.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
SAMPLES = 8 * SAMPLE_RATE
WINDOW, HOP, BANDS = 400, 160, 80
FRAMES = SAMPLES // HOP
FLOOR = 1e-10
RANGE = 8.0  # of the logarithms below the greatest one
VARIANCE_FLOOR = 1e-7
_LINEAR_BELOW_HZ, _LINEAR_MELS, _STEPS = 1_000.0, 15.0, 27.0 / np.log(6.4)  # Slaney's scale: linear, then logarithmic


def log_mel(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return the features, (80, 800), of up to `SAMPLES` samples at 16 kHz; shorter audio is preceded by zeros."""
    audio = np.zeros(SAMPLES, np.float32)
    if len(samples):
        audio[-len(samples) :] = samples
    audio /= 32_768.0
    audio = (audio - audio.mean()) / np.sqrt(audio.var() + VARIANCE_FLOOR)
    padded = np.pad(audio.astype(np.float64), WINDOW // 2, mode="reflect")
    windows = sliding_window_view(padded, WINDOW)[::HOP][:FRAMES]  # (800, 400)
    spectrum = np.abs(np.fft.rfft(windows * _window(), axis=-1)) ** 2  # (800, 201)
    logs = np.log10(np.maximum(spectrum @ _filters(), FLOOR)).T  # (80, 800)
    features: NDArray[np.float32] = ((np.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0).astype(np.float32)
    return features


@functools.cache
def _window() -> NDArray[np.float64]:
    """Hann's window of one period, (400,)."""
    return np.hanning(WINDOW + 1)[:-1]


@functools.cache
def _filters() -> NDArray[np.float64]:
    """Mel filters, (201, 80)."""
    hz = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)  # (201,)
    edges = _to_hz(np.linspace(0.0, _to_mel(SAMPLE_RATE / 2), BANDS + 2))  # (82,)
    distance = edges[None, :] - hz[:, None]  # (201, 82)
    rising = -distance[:, :-2] / np.diff(edges)[:-1]
    falling = distance[:, 2:] / np.diff(edges)[1:]
    area: NDArray[np.float64] = 2.0 / (edges[2:] - edges[:-2])
    filters: NDArray[np.float64] = np.minimum(rising, falling).clip(min=0.0) * area
    return filters


def _to_mel(hz: float) -> float:
    if hz < _LINEAR_BELOW_HZ:
        return 3.0 * hz / 200.0
    return float(_LINEAR_MELS + np.log(hz / _LINEAR_BELOW_HZ) * _STEPS)


def _to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = _LINEAR_BELOW_HZ * np.exp((mels - _LINEAR_MELS) / _STEPS)
    return np.where(mels < _LINEAR_MELS, 200.0 * mels / 3.0, logarithmic)
