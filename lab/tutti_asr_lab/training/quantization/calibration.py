"""Calibration: inputs of a network's products on speech, and the ranges of 8-bit integers that fit them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.attention_config import OwnConfig
from model.checkpoint import products_of
from model.int8.quantized import LARGEST_INPUT
from model.torch_network.network import Network

ROW_STEPS = 100  # steps per row: 8 s of speech
ROWS = 32  # rows per batch
KEPT = 16_384  # inputs kept for each product: ten times the width of the widest one
BINS = 4_096  # of the histogram for the search of ranges: 16 per integer
SHRINKS = np.geomspace(0.25, 1.0, 24)
"""Ends of ranges to try, as fractions of the largest value: 5 % apart; finer steps hardly change the error."""


def in_rows(recordings: Sequence[NDArray[np.int16]], config: OwnConfig, steps: int = ROW_STEPS) -> Tensor:
    """Concatenate recordings (S,) int16 and split them into rows (B, steps * step_samples), without padding.

    Audio shorter than one row gives one shorter row.
    """
    joined = np.concatenate([np.asarray(pcm, np.int16) for pcm in recordings])
    steps = max(1, min(steps, len(joined) // config.step_samples))
    length = steps * config.step_samples
    rows = max(1, len(joined) // length)
    return torch.from_numpy(np.resize(joined[: rows * length], (rows, length)))


@torch.no_grad()
def inputs_of(network: Network, pcm: Tensor) -> dict[str, Tensor]:
    """Inputs of every product by name, (N, in) float32, on rows of audio (B, S) int16; N is at most `KEPT`."""
    found: dict[str, list[Tensor]] = {name: [] for name in products_of(network.config)}
    batch: dict[str, list[Tensor]] = {name: [] for name in found}

    def keep(name: str) -> object:
        return lambda _module, arguments: batch[name].append(arguments[0].flatten(0, -2))

    hooks = [
        network.get_submodule(module).register_forward_pre_hook(keep(name))  # type: ignore[arg-type]
        for name, module in products_of(network.config).items()
    ]
    try:
        for rows in torch.split(pcm, ROWS):
            network(rows, network.fresh_state(len(rows)))
            for name, parts in batch.items():
                joined = torch.cat(parts)  # (N, in)
                share = KEPT * len(rows) // len(pcm)
                found[name].append(joined[:: max(1, -(-len(joined) // max(1, share)))].clone())
                parts.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def best_range(x: Tensor, importance: Tensor) -> tuple[float, int]:
    """Input scale and zero point with the least squared error for x (N, in), weighted by importance (in,)."""
    values = x.double().numpy().ravel()
    weights = np.broadcast_to(importance.double().numpy(), tuple(x.shape)).ravel()
    low, high = min(0.0, float(values.min())), max(1e-6, float(values.max()))
    counts, edges = np.histogram(values, bins=BINS, range=(low, high), weights=weights)
    centers = (edges[1:] + edges[:-1]) / 2
    best = (np.inf, 1.0, 0)
    for below in SHRINKS if low < 0 else (1.0,):
        for above in SHRINKS:
            scale = float(np.float32((above * high - below * low) / LARGEST_INPUT))
            zero = int(np.clip(np.rint(-below * low / scale), 0, LARGEST_INPUT))
            q = np.clip(np.rint(centers / scale) + zero, 0, LARGEST_INPUT) - zero
            best = min(best, (float(counts @ (q * scale - centers) ** 2), scale, zero))
    return best[1], best[2]


def quantized_inputs(x: Tensor, scale: float, zero: int) -> Tensor:
    """Quantize x to integers and convert these back."""
    inverse = float(1 / np.float32(scale))
    q: Tensor = (x * inverse).round().add(zero).clamp(0, LARGEST_INPUT) - zero
    return q * scale
