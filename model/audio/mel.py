"""Mel filters of the features, shared by the network in torch and in 8-bit arithmetic."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-6  # mel energy of white noise at -90 dBFS, below any microphone, so that digital silence is no outlier


class FeatureConfig(Protocol):
    """Sizes of the features: windows of samples, a transform of `fft_size` points, filters between two frequencies."""

    @property
    def sample_rate(self) -> int:
        """Samples per second."""

    @property
    def window_samples(self) -> int:
        """Samples of a window."""

    @property
    def hop_samples(self) -> int:
        """Samples from one window to the next."""

    @property
    def fft_size(self) -> int:
        """Points of the transform."""

    @property
    def mel_bins(self) -> int:
        """Number of filters."""

    @property
    def mel_low_hz(self) -> float:
        """Lower edge of the first filter."""

    @property
    def mel_high_hz(self) -> float:
        """Upper edge of the last filter."""


def mel_filters(config: FeatureConfig) -> NDArray[np.float32]:
    """Return triangular filters, (fft_size // 2 + 1, F) float32, equally spaced on the mel scale, peak 1."""
    mel = _hz_to_mel(np.linspace(0, config.sample_rate / 2, config.fft_size // 2 + 1))
    low, high = _hz_to_mel(np.array([config.mel_low_hz, config.mel_high_hz]))
    return _triangles(mel, np.linspace(low, high, config.mel_bins + 2))


def slaney_filters(config: FeatureConfig) -> NDArray[np.float32]:
    """Return triangles over frequency, (fft_size // 2 + 1, F) float32, equally spaced on Slaney's scale, peak 1."""
    mels = np.linspace(slaney_mel(config.mel_low_hz), slaney_mel(config.mel_high_hz), config.mel_bins + 2)
    edges = np.array([slaney_hz(mel) for mel in mels.tolist()])
    return _triangles(np.linspace(0, config.sample_rate / 2, config.fft_size // 2 + 1), edges)


def _triangles(points: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float32]:
    """Height at `points` (K,) of triangles with peak 1 from each of the `edges` (F + 2,) to the second next: (K, F)."""
    rising = (points[:, None] - edges[None, :-2]) / np.diff(edges)[:-1]
    falling = (edges[None, 2:] - points[:, None]) / np.diff(edges)[1:]
    heights: NDArray[np.float32] = np.minimum(rising, falling).clip(min=0).astype(np.float32)
    return heights


def slaney_mel(hz: float) -> float:
    """Slaney's mel scale: linear below 1 kHz, logarithmic above. Source: Slaney 1998, "Auditory Toolbox"."""
    return hz * 3 / 200 if hz <= 1_000 else 15 + 27 / math.log(6.4) * math.log(hz / 1_000)


def slaney_hz(mel: float) -> float:
    """Inverse of `slaney_mel`."""
    return mel * 200 / 3 if mel <= 15 else 1_000 * math.exp((mel - 15) * math.log(6.4) / 27)


def _hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mel scale of O'Shaughnessy (1987), as in HTK."""
    return 2595.0 * np.log10(1.0 + hz / 700.0)
