"""Ceiling of every served figure on this machine: the bare step, the matrix product that bounds it, reads from cache.

Guests of one host share its last cache. When the others use it up, each step reads its weights from memory and takes
several times as long: the commonest reason why one hour is slower than another. `read_ns` measures it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from model.acoustic import AcousticModel
from model.network import Network

WARM_UP, RUNS = 5, 30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

READS = 100_000
ROUNDS = 9
SLOW_NS = 60.0
"""Limit between reads from a last cache, 10 to 40 ns, and from memory, 80 ns and more."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Median milliseconds of a step by batch size; products in 10^9 operations a second, at the largest batch.

    `read_ns`: on a CPU, median nanoseconds of a random read from as much memory as the weights take; `in_caches`:
    whether that time is short enough for the weights to stay in the caches between steps.
    """

    step_ms: dict[int, float]
    product_gflops: float
    step_gflops: float
    precision: str
    threads: int
    read_ns: float | None = None
    in_caches: bool | None = None

    @property
    def share(self) -> float:
        """Speed of a step of the largest batch as a share of the product's."""
        return self.step_gflops / self.product_gflops


def measure(model: AcousticModel, batches: Sequence[int] = BATCHES) -> Ceiling:
    """Time steps of random audio, alone on the machine and with torch's present number of threads."""
    step_ms = {rows: round(_median_ms(_stepper(model, rows)), 3) for rows in batches}
    largest = max(batches)
    waits = statistics.median(read_ns(weight_bytes(model.network))) if model.device.type == "cpu" else None
    return Ceiling(
        step_ms=step_ms,
        product_gflops=round(_product_gflops(model, largest), 1),
        step_gflops=round(_step_operations(model) * largest / step_ms[largest] / 1e6, 1),
        precision=model.precision,
        threads=torch.get_num_threads(),
        read_ns=None if waits is None else round(waits, 1),
        in_caches=None if waits is None else waits <= SLOW_NS,
    )


def _stepper(model: AcousticModel, rows: int) -> Callable[[], object]:
    """Return the step as it serves: in slabs on a CPU, up to the copy to the host on a GPU."""
    padded = max(rows, model.min_rows)
    pcm = torch.randint(-8_000, 8_000, (padded, model.config.step_samples), dtype=torch.int16, device=model.device)
    state = model.network.fresh_state(padded)
    if model.device.type != "cpu":
        return lambda: model.step(pcm, state)[0].cpu()  # noqa: PLW0108 - inlined, it would step once
    step = torch.inference_mode()(model.in_slabs(pcm, torch.arange(padded), state))
    return lambda: step(0, padded, rows)


def _step_operations(model: AcousticModel) -> float:
    """Multiplications and additions of one stream's step in its weight matrices."""
    frames = model.config.frames_per_step
    tensors: dict[str, Tensor] = model.network.state_dict()  # parameters, and the weights of int8
    weights = {name: each for name, each in tensors.items() if name.endswith(".weight") and each.ndim == 2}
    per_frame = sum(each.numel() for name, each in weights.items() if "lookahead" not in name)
    twice = weights["conv0.product.weight"].numel()
    return 2.0 * frames * (per_frame + twice)  # the first convolution runs at twice the output rate


def _product_gflops(model: AcousticModel, rows: int) -> float:
    """Speed of the recurrent product by itself."""
    recurrent = model.network.get_submodule("grus.0.recurrent")
    weight: Tensor = recurrent.state_dict()["weight"]
    outputs, inputs = weight.shape
    x = torch.randn(rows, inputs, dtype=model.network.dtype, device=model.device)

    def product() -> object:
        with torch.inference_mode():
            return recurrent(x).sum().item()

    return 2.0 * rows * inputs * outputs / _median_ms(product) / 1e6


def _median_ms(work: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def weight_bytes(network: Network) -> int:
    """Bytes of weights that a step reads, at the network's precision."""
    return sum(each.numel() * each.element_size() for each in network.state_dict().values())


def read_ns(size: int) -> list[float]:
    """Nanoseconds of one read from `size` bytes, by round.

    Each read gives the address of the next, in random order, so that no prefetcher helps.
    """
    chain = _chain(size)
    _follow(chain, len(chain))  # compiles, and fills the caches
    found: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        _follow(chain, READS)
        found.append((time.perf_counter_ns() - began) / READS)
    return found


def _chain(size: int) -> np.ndarray:
    """Indices, each of the next element: one random cycle through all of them, (size / 8,) int64."""
    order = np.random.default_rng(1).permutation(size // 8)
    chain = np.empty(len(order), np.int64)
    chain[order] = np.roll(order, -1)
    return chain


@numba.njit
def _follow(chain: np.ndarray, reads: int) -> int:
    at = 0
    for _ in range(reads):
        at = chain[at]
    return at
