"""The network of voices in torch, and its 8-bit form: `model.speakers.step` computes the latter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from model.checkpoint import product_arrays
from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT, QuantizedProduct
from model.speakers.slot_model import LEAST_VARIANCE
from model.speakers.step import BINS, CHANNELS, DILATIONS, POOLED, SIZE, STRIDE, TAPS

LARGEST_HEAD = 127
CLIPPED = 1e-4  # part of the values of a layer that is beyond the range of its bytes
Floats = NDArray[np.float32]


class VoiceNetwork(nn.Module):
    """Vectors (B, SIZE) of norm 1 of normalized log-mel frames (B, T, BINS)."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv1d(BINS, CHANNELS, TAPS, stride=STRIDE)]
        layers += [nn.Conv1d(CHANNELS, CHANNELS, 3, dilation=dilation) for dilation in DILATIONS]
        layers.append(nn.Conv1d(CHANNELS, POOLED, 1))
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([nn.BatchNorm1d(layer.out_channels) for layer in layers])
        self.head = nn.Linear(2 * POOLED, SIZE)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the vectors."""
        x = frames.transpose(1, 2)  # (B, BINS, T)
        for layer, norm in self.blocks():
            x = functional.relu(norm(layer(x)))
        mean = x.mean(2)
        deviation = torch.sqrt(((x * x).mean(2) - mean * mean).clamp(min=LEAST_VARIANCE))
        return functional.normalize(self.head(torch.cat([mean, deviation], 1)))

    def blocks(self) -> Iterator[tuple[nn.Conv1d, nn.BatchNorm1d]]:
        """Return each convolution with the normalization of its outputs."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            assert isinstance(layer, nn.Conv1d)
            assert isinstance(norm, nn.BatchNorm1d)
            yield layer, norm


@torch.no_grad()
def quantized_tensors(
    network: VoiceNetwork, mean: Floats, deviation: Floats, frames: Tensor
) -> dict[str, NDArray[Any]]:
    """Return the tensors of the file of weights.

    `mean`, `deviation` (BINS,): of the log-mel frames; `frames` (B, T, BINS): normalized ones, which set the ranges.
    """
    network.eval()
    x = frames.transpose(1, 2)
    arrays: dict[str, NDArray[Any]] = {}
    low, high = (float(torch.quantile(x.flatten()[::7][:4_000_000], part)) for part in (1e-3, 1 - 1e-3))
    scale = (high - low) / LARGEST_INPUT
    zero = round(-low / scale)
    for number, (layer, norm) in enumerate(network.blocks()):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert layer.bias is not None
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (layer.weight * factor[:, None, None]).transpose(1, 2).flatten(1).numpy()  # (out, taps * in)
        bias = (norm.bias + (layer.bias - norm.running_mean) * factor).numpy()
        rows = np.maximum(np.abs(weight).max(axis=1), 1e-8) / LARGEST_WEIGHT
        integers = np.rint(weight / rows[:, None]).astype(np.int8)
        product = QuantizedProduct(integers, rows.astype(np.float32), bias.astype(np.float32), scale, zero)
        arrays |= product_arrays(f"frames.{number}", product)
        x = functional.relu(norm(layer(x)))
        scale, zero = float(torch.quantile(x.flatten()[::31][:4_000_000], 1 - CLIPPED)) / LARGEST_INPUT, 0
    head = network.head.weight.numpy()
    rows = np.abs(head).max(axis=1) / LARGEST_HEAD
    arrays |= {
        "features.mean": mean,
        "features.scale": 1 / deviation,
        "output_scale": np.array(scale, np.float32),
        "head.weight": np.rint(head / rows[:, None]).astype(np.int8),
        "head.weight_scale": rows.astype(np.float32),
        "head.bias": network.head.bias.numpy(),
    }
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}
