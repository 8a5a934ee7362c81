"""Ceiling of every served figure on this machine: the bare step, the matrix product that bounds it, reads from cache.

Guests of one host share its last cache. When the others use it up, each step reads its weights from memory and takes
several times as long: the commonest reason why one hour is slower than another. `read_ns` measures it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numba
import numpy as np

from model.acoustic import AcousticModel
from model.config import PAIRS, ModelConfig
from model.published.published_model import PublishedModel

WARM_UP, RUNS = 5, 30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

READS = 100_000
ROUNDS = 9
SLOW_NS = 60.0
"""Limit between reads from a last cache, 10 to 40 ns, and from memory, 80 ns and more."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Median milliseconds of a step by batch size; products in 10^9 operations a second, at the largest batch.

    The products of a published model are not known: they are None. `step_audio_ms` is the audio of a step.
    `read_ns`: on a CPU, median nanoseconds of a random read from as much memory as the weights take; `in_caches`:
    whether that time is short enough for the weights to stay in the caches between steps.
    """

    step_ms: dict[int, float]
    step_audio_ms: float
    product_gflops: float | None
    step_gflops: float | None
    precision: str
    threads: int
    read_ns: float | None = None
    in_caches: bool | None = None

    @property
    def share(self) -> float | None:
        """Speed of a step of the largest batch as a share of the product's."""
        if self.step_gflops is None or self.product_gflops is None:
            return None
        return self.step_gflops / self.product_gflops


def measure(model: AcousticModel, batches: Sequence[int] = BATCHES) -> Ceiling:
    """Time steps of random audio as they serve, alone on the machine."""
    slots = model.slots(capacity=max(batches), largest=max(batches))
    largest = len(slots.inputs)
    slots.inputs[:] = np.random.default_rng(1).integers(-8_000, 8_000, slots.inputs.shape)
    step_ms = {rows: round(_median_ms(partial(slots.run, range(rows))), 3) for rows in batches if rows <= largest}
    product_gflops, step_gflops = _gflops(model, largest, step_ms[largest])
    waits = statistics.median(read_ns(model.weight_bytes)) if model.device.type == "cpu" else None
    return Ceiling(
        step_ms=step_ms,
        step_audio_ms=model.config.step_samples / model.config.sample_rate * 1e3,
        product_gflops=product_gflops,
        step_gflops=step_gflops,
        precision=model.precision,
        threads=model.threads,
        read_ns=None if waits is None else round(waits, 1),
        in_caches=None if waits is None else waits <= SLOW_NS,
    )


def _gflops(model: AcousticModel, rows: int, step_ms: float) -> tuple[float | None, float | None]:
    """Of the recurrent product alone, and of a whole step's products, at so many rows."""
    if isinstance(model, PublishedModel):
        return None, None
    product = 6.0 * rows * model.config.hidden**2  # operations
    return (
        round(product / _median_ms(model.recurrent_product(rows)) / 1e6, 1),
        round(step_operations(model.config) * rows / step_ms / 1e6, 1),
    )


def step_operations(config: ModelConfig) -> float:
    """Multiplications and additions of one stream's step in its weight matrices."""
    c, h = config, config.hidden
    conv0, conv1 = 2 * PAIRS * c.mel_bins * c.conv_channels, 2 * PAIRS * c.conv_channels * h
    grus, dense, head = c.layers * 2 * 3 * h * h, h * h, h * c.outputs
    per_frame = 2 * conv0 + conv1 + grus + dense + head  # the first convolution runs at twice the output rate
    return 2.0 * c.frames_per_step * per_frame


def _median_ms(work: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


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
