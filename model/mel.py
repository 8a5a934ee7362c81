"""Mel filters of the features, shared by the network in torch and in 8-bit arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.config import ModelConfig

FLOOR = 1e-6  # mel energy of white noise at -90 dBFS, below any microphone, so that digital silence is no outlier


def mel_filters(config: ModelConfig) -> NDArray[np.float32]:
    """Return triangular filters, (fft_size // 2 + 1, F) float32, equally spaced on the mel scale, peak 1."""
    mel = _hz_to_mel(np.linspace(0, config.sample_rate / 2, config.fft_size // 2 + 1))
    low, high = _hz_to_mel(np.array([config.mel_low_hz, config.mel_high_hz]))
    edges = np.linspace(low, high, config.mel_bins + 2)
    width = edges[1] - edges[0]
    rising = (mel[:, None] - edges[None, :-2]) / width
    falling = (edges[None, 2:] - mel[:, None]) / width
    filters: NDArray[np.float32] = np.minimum(rising, falling).clip(min=0).astype(np.float32)
    return filters


def _hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mel scale of O'Shaughnessy (1987), as in HTK."""
    return 2595.0 * np.log10(1.0 + hz / 700.0)
