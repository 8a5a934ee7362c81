"""Products of a network's weights with few columns: our kernels and cuBLAS, in GB/s of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from loadtest.benchmarks.gpu.networks import NETWORKS
from loadtest.benchmarks.gpu.records import Case, Values
from loadtest.benchmarks.gpu.scale import Context
from loadtest.benchmarks.gpu.subjects import product
from loadtest.benchmarks.gpu.timing import Work, captured, device_time
from model.config import ModelConfig

OURS, CUBLAS = "ours", "cuBLAS"
CACHE_BYTES = 50 << 20
MOST_COPIES = 32


def shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return rows and depth of W, by product."""
    hidden, window = config.hidden, 6
    return {
        "input": (3 * hidden, hidden),
        "conv1": (hidden, window * config.conv_channels),
        "dense": (hidden, hidden),
        "conv0": (config.conv_channels, window * config.mel_bins),
        "head": (config.outputs, hidden),
    }


def cases(context: Context) -> Iterator[tuple[Case, Callable[[], Values]]]:
    """Yield cases by product and number of columns, which is rows times frames."""
    name = context.scale.networks[0]
    for what, (rows, depth) in shapes(NETWORKS[name]).items():
        for columns in context.scale.columns:
            for how in (OURS, CUBLAS)[context.device.type != "cuda" :]:
                case: Case = {"network": name, "product": what, "columns": columns, "how": how}
                yield (
                    case,
                    partial(_time, context, rows, depth, columns, how),
                )


def _time(context: Context, rows: int, depth: int, columns: int, how: str) -> Values:
    """Measure the time of a product; copies of the weights are used in turn, so that they are read from memory."""
    device = context.device
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    size = 2 * rows * depth
    copies = min(MOST_COPIES, max(context.scale.copies, -(-2 * CACHE_BYTES // size))) if device.type == "cuda" else 1
    x = torch.randn(columns, depth, device=device).to(dtype)
    works = [_work(rows, depth, x, how, device) for _ in range(copies)]

    def all_copies() -> None:
        for work in works:
            work()

    took = device_time(captured(all_copies, device), device, per_call=copies)
    return took.values() | {"gb_s": round(size / took.median_us / 1e3, 1), "copies": copies}


def _work(rows: int, depth: int, x: Tensor, how: str, device: torch.device) -> Work:
    weight = (torch.randn(rows, depth, device=device) * depth**-0.5).to(x.dtype)
    bias = torch.randn(rows, device=device).to(x.dtype)
    y = torch.empty(len(x), rows, dtype=x.dtype, device=device)
    if how == CUBLAS:
        return lambda: torch.addmm(bias, x, weight.t(), out=y)
    return partial(product(weight, bias, len(x)), x, y)
