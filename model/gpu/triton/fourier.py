"""The windowed Fourier transform of int16 samples as a matrix, and the mel filters as short rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SECOND = 2048
"""Factor of the second part of a split matrix: fp16 has 11 binary digits."""


def fourier_matrix(window: Tensor, fft_size: int) -> tuple[Tensor, Tensor]:
    """Return real and imaginary part of the windowed transform, (window, fft_size / 2 + 1) float32."""
    length, bins = len(window), fft_size // 2 + 1
    n, k = torch.arange(length, dtype=torch.float64), torch.arange(bins, dtype=torch.float64)
    angle = 2 * math.pi / fft_size * torch.remainder(n[:, None] * k[None, :], fft_size)
    weights = window.double().cpu()[:, None]
    real, imaginary = (part * weights for part in (torch.cos(angle), -torch.sin(angle)))
    return real.float().to(window.device), imaginary.float().to(window.device)


def split_matrix(matrix: Tensor, bins: int, length: int) -> Tensor:
    """Split a float32 matrix (window, its bins) into fp16 first + second / 2048: (2, bins, length), zero-padded."""
    whole = matrix.new_zeros(bins, length)
    whole[: matrix.shape[1], : matrix.shape[0]] = matrix.t()
    first = whole.half()
    second = ((whole - first.float()) * SECOND).half()
    return torch.stack([first, second])


def filter_rows(filters: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return filters (bins, F) as first bins, (rows,) int32, and weights from there on, (rows, widest) float32.

    Rows from F on are zeros. No row extends past the last bin.
    """
    bins, count = filters.shape
    used = [column.nonzero().flatten().tolist() or [0] for column in filters.cpu().t()]
    width = max(places[-1] - places[0] + 1 for places in used)
    first, weights = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, width)
    for row in range(count):
        start = min(used[row][0], bins - width)
        first[row] = start
        weights[row] = filters[start : start + width, row]
    return first, weights
