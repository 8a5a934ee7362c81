"""Upper bounds of serving speed on this machine: a bare step, its matrix product alone, and cache reads.

Virtual machines of one host share its last-level cache. When the others fill it, each step reads its weights from
memory and takes several times as long: the most common reason for differences between runs. `read_ns` detects it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from model.facts import AcousticModel
from model.machine.memory import follow

WARM_UP, RUNS = 5, 30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)

READS = 100_000
ROUNDS = 9
SLOW_NS = 60.0
"""Threshold between reads from a last-level cache, 10 to 40 ns, and from memory, 80 ns and more."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Measured limits.

    `step_ms`: median milliseconds of a step by batch size. `step_audio_ms`: audio per step. `product_gflops`,
    `step_gflops`: 10^9 operations a second of the recurrent product and of a whole step at the largest batch; None for
    a published model, whose products are unknown. `read_ns`: on a CPU, median nanoseconds of a random read from a
    buffer of the weights' size. `in_caches`: whether the weights stay in the caches between steps, judged by `read_ns`.
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
        """Speed of a step of the largest batch as a fraction of the product's speed."""
        if self.step_gflops is None or self.product_gflops is None:
            return None
        return self.step_gflops / self.product_gflops


def measure(model: AcousticModel, batches: Sequence[int] = BATCHES) -> Ceiling:
    """Time the serving steps on random audio. Run nothing else on the machine."""
    slots = model.slots(capacity=max(batches), largest=max(batches))
    largest = len(slots.inputs)
    slots.inputs[:] = np.random.default_rng(1).integers(-8_000, 8_000, slots.inputs.shape)
    step_ms = {rows: round(_median_ms(partial(slots.run, range(rows))), 3) for rows in batches if rows <= largest}
    product_gflops, step_gflops = _gflops(model, largest, step_ms[largest])
    waits = statistics.median(read_ns(model.weight_bytes)) if model.facts.device.type == "cpu" else None
    return Ceiling(
        step_ms=step_ms,
        step_audio_ms=model.config.step_samples / model.config.sample_rate * 1e3,
        product_gflops=product_gflops,
        step_gflops=step_gflops,
        precision=model.facts.precision,
        threads=model.threads,
        read_ns=None if waits is None else round(waits, 1),
        in_caches=None if waits is None else waits <= SLOW_NS,
    )


def _gflops(model: AcousticModel, rows: int, step_ms: float) -> tuple[float | None, float | None]:
    """Speed of the recurrent product alone and of all products of a step, at `rows` rows."""
    product = model.recurrent_product(rows)
    if product is None:
        return None, None
    config = model.facts.own_config
    return (
        round(config.product_operations * rows / _median_ms(product) / 1e6, 1),
        round(config.step_operations * rows / step_ms / 1e6, 1),
    )


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
    """Nanoseconds of a random read from `size` bytes, one value per round.

    Each read yields the address of the next, in random order, so that prefetching has no effect.
    """
    chain = _chain(size)
    follow(chain.ctypes.data, len(chain))  # compiles the loop and fills the caches
    rounds_ns: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        follow(chain.ctypes.data, READS)
        rounds_ns.append((time.perf_counter_ns() - began) / READS)
    return rounds_ns


def _chain(size: int) -> np.ndarray:
    """One random cycle through all indices: element i is the index after i, (size / 8,) int64."""
    order = np.random.default_rng(1).permutation(size // 8)
    chain = np.empty(len(order), np.int64)
    chain[order] = np.roll(order, -1)
    return chain
