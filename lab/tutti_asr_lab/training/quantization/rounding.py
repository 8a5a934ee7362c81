"""Rounding of a weight matrix to integers with one scale per row: to nearest, or with the least error on its inputs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.int8.quantized import LARGEST_WEIGHT

SHRINKS = np.linspace(0.6, 1.0, 21)  # values of the largest integer to try, as fractions of a row's largest weight
DAMPING = 0.01  # fraction of the mean second moment. Source: Frantar et al. 2022
_LEAST = 1e-12


def rounded_outputs(
    weight: NDArray[np.float32], largest: int = LARGEST_WEIGHT
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers (out, in) within ± `largest`, and the scale (out,) that each row's largest weight gives it."""
    scale = np.maximum(np.abs(weight).max(axis=1), _LEAST) / np.float32(largest)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale.astype(np.float32)


def nearest(weight: Tensor, scale: Tensor) -> Tensor:
    """Nearest integers to weight (out, in) with scale (out,)."""
    return (weight / scale[:, None]).round().clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)


def error(difference: Tensor, moments: Tensor) -> Tensor:
    """Squared error (out,) caused by a difference of weights (out, in) on inputs with second moments (in, in)."""
    return torch.einsum("oi,ij,oj->o", difference, moments, difference)


def row_scales(weight: Tensor, moments: Tensor) -> Tensor:
    """Scale (out,) of each row, among `SHRINKS`, with the least error of rounding to nearest."""
    widest = weight.abs().amax(1).clamp_min(_LEAST) / LARGEST_WEIGHT  # (out,)
    best, least = widest.clone(), torch.full_like(widest, torch.inf)
    for shrink in SHRINKS:
        scale = widest * shrink
        found = error(nearest(weight, scale) * scale[:, None] - weight, moments)
        best, least = torch.where(found < least, scale, best), torch.minimum(found, least)
    return best


def round_compensated(weight: Tensor, scale: Tensor, moments: Tensor) -> Tensor:
    """Integers of weight (out, in), float64, rounded column by column; later columns compensate for each error.

    Rows for which rounding to nearest has less error use that. Source: GPTQ, Frantar et al. 2022, arXiv:2210.17323.
    """
    order = torch.argsort(moments.diagonal(), descending=True)
    damped = moments + DAMPING * moments.diagonal().mean().clamp_min(_LEAST) * torch.eye(len(moments)).to(moments)
    inverse = torch.linalg.inv(damped[order][:, order])
    factor = torch.linalg.cholesky((inverse + inverse.T) / 2, upper=True)
    left = weight[:, order].clone()
    integers = torch.empty_like(left)
    for column in range(left.shape[1]):
        integers[:, column] = (left[:, column] / scale).round().clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)
        missed = (left[:, column] - integers[:, column] * scale) / factor[column, column]
        left[:, column + 1 :] -= missed[:, None] * factor[column, column + 1 :]
    found = torch.empty_like(integers)
    found[:, order] = integers
    plain = nearest(weight, scale)
    errors = [error(chosen * scale[:, None] - weight, moments) for chosen in (found, plain)]
    return torch.where((errors[0] <= errors[1])[:, None], found, plain)
