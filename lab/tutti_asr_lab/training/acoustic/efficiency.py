"""Share of the machine's peak that a training run reaches: operations of an update, and the measured product peak.

Counted are the matrix products, of padding too: forward, gradients of inputs and gradients of weights of the network,
forward of teachers, and Muon's iterations. Element-wise work, features, losses and sums count as nothing, as in Deep
Speech 2, section 4 (https://arxiv.org/abs/1512.02595). The peak is the fastest of several square products of one
process in the run's precision, measured by all processes at the same time, so it is that of the machine as the run
finds it and not that of a data sheet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from model.config import PAIRS, ModelConfig
from model.torch_network.network import DTYPES
from tutti_asr_lab.training.acoustic.optimizer.muon import ITERATIONS, cost

SIDE, SIDE_CUDA = 768, 8_192  # of the square products
AT_LEAST, AT_LEAST_S = 3, 0.1  # products measured


def flops_of(config: ModelConfig, rows: int, frames: int, *, training: bool = True) -> int:
    """Operations of the products for `rows` recordings of `frames` output frames; `training`: with the backward pass.

    A backward pass has two products for each of the forward pass, but none for the gradient of the features.
    """
    first = 2 * (2 * PAIRS * config.mel_bins) * config.conv_channels  # it runs at twice the rate of all others
    others = (
        2 * PAIRS * config.conv_channels * config.hidden
        + config.layers * 6 * config.hidden**2
        + config.hidden**2
        + config.hidden * config.outputs
    )
    return 2 * rows * frames * (2 * first + 3 * others if training else first + others)


def flops_of_muon(shapes: Sequence[Sequence[int]]) -> int:
    """Operations of one step, over all processes."""
    return sum(2 * ITERATIONS * cost(shape) for shape in shapes)


def product_peak(precision: str, device: torch.device) -> float:
    """Operations per second of a square product in `precision` with this process's threads."""
    side = SIDE_CUDA if device.type == "cuda" else SIDE
    one, other = (torch.randn(side, side, device=device, dtype=DTYPES[precision]) for _ in range(2))
    fastest = float("inf")
    count, until = 0, time.perf_counter() + AT_LEAST_S
    while count < AT_LEAST or time.perf_counter() < until:
        began = time.perf_counter()
        torch.mm(one, other)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if count:  # the first one loads the kernel
            fastest = min(fastest, time.perf_counter() - began)
        count += 1
    return 2 * side**3 / fastest
