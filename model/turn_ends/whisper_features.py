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

from model.published.filter_bank import WHISPER, filters_of

SAMPLE_RATE = 16_000
SAMPLES = 8 * SAMPLE_RATE
WINDOW, HOP, BANDS = 400, 160, 80
FRAMES = SAMPLES // HOP
FLOOR = 1e-10
RANGE = 8.0  # of the logarithms below the greatest one
VARIANCE_FLOOR = 1e-7


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
    return filters_of(WHISPER, WINDOW).T
