"""The windowed Fourier transform of int16 samples as a matrix: what a feature frame is multiplied with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DEPTH = 64
"""Samples or bins in one iteration of a kernel's loop: the matrix is filled up with zeros to whole iterations."""


def fourier_matrix(window: Tensor, fft_size: int, padded: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the windowed transform of int16 samples, (window rounded up to 64, padded) float32."""
    length, bins = len(window), fft_size // 2 + 1
    n, k = torch.arange(length, dtype=torch.float64), torch.arange(bins, dtype=torch.float64)
    angle = 2 * math.pi / fft_size * torch.remainder(n[:, None] * k[None, :], fft_size)
    weights = window.double().cpu()[:, None] / 32768
    parts = []
    for part in (torch.cos(angle), -torch.sin(angle)):
        matrix = torch.zeros(DEPTH * -(-length // DEPTH), padded)
        matrix[:length, :bins] = (part * weights).float()
        parts.append(matrix.to(window.device))
    return parts[0], parts[1]
