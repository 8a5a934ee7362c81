"""Efficiency of small batches: speed of a step, and of its largest product, by rows, against the product's peak.

All figures are from one run on one thread. Rows and precisions take turns, and each time is the median over all turns,
in processor time of the thread, so that other programs affect ratios only through the caches. Persistent RNNs report
the same figure for GPUs.
Source: Diamos et al. 2016, http://proceedings.mlr.press/v48/diamos16.html.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from model.acoustic import load_own
from model.checkpoint import GRU
from model.evaluation.ceiling import BATCHES
from model.facts import AcousticModel

TURNS = 5
CALLS = 4  # timed calls of a turn; one more before them fetches the weights into the caches
PEAK_ROWS = 512
"""Rows of one more product, with which the peak is reached where batches are too small for it."""

Work = tuple[str, str, int]  # precision, "step" or "product", rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Speed at a batch size: median milliseconds of a step; 10^9 operations a second of steps and of the product."""

    step_ms: float
    step_gflops: float
    product_gflops: float


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Speeds of one precision by rows. `peak_gflops`: of the fastest product of the run, at any number of rows."""

    precision: str
    peak_gflops: float
    by_rows: dict[int, Rows]

    def shares(self, rows: int) -> tuple[float, float]:
        """Speed of a step, and of its largest product, as fractions of the peak."""
        speeds = self.by_rows[rows]
        return speeds.step_gflops / self.peak_gflops, speeds.product_gflops / self.peak_gflops


def measure_small(
    models: Sequence[AcousticModel], rows: Sequence[int] = BATCHES, turns: int = TURNS
) -> list[Efficiency]:
    """Time steps and products of each model; they differ in precision, and compute on the calling thread."""
    works: dict[Work, Callable[[], object]] = {}
    for count in rows:
        for model in models:
            works[model.facts.precision, "step", count] = _step(model, count)
            works[model.facts.precision, "product", count] = _product(model, count)
    works |= {(model.facts.precision, "product", PEAK_ROWS): _product(model, PEAK_ROWS) for model in models}
    seconds = _medians(works, turns)
    return [_efficiency(model, seconds, rows) for model in models]


def _step(model: AcousticModel, rows: int) -> Callable[[], object]:
    """A step of `rows` streams on noise."""
    slots = model.slots(capacity=rows, largest=rows)
    slots.inputs[:] = np.random.default_rng(1).integers(-8_000, 8_000, slots.inputs.shape)
    return partial(slots.run, range(rows))


def _product(model: AcousticModel, rows: int) -> Callable[[], object]:
    product = model.recurrent_product(rows)
    assert product is not None, "it is published"
    return product


def _medians(works: dict[Work, Callable[[], object]], turns: int) -> dict[Work, float]:
    """Median seconds of each work."""
    seconds: dict[Work, list[float]] = defaultdict(list)
    for _ in range(turns):
        for work, call in works.items():
            call()
            for _ in range(CALLS):
                began = time.thread_time()
                call()
                seconds[work].append(time.thread_time() - began)
    return {work: statistics.median(each) for work, each in seconds.items()}


def _efficiency(model: AcousticModel, seconds: dict[Work, float], rows: Sequence[int]) -> Efficiency:
    """Speeds of one model."""
    config = model.facts.own_config

    def product_gflops(count: int) -> float:
        return config.product_operations * count / seconds[model.facts.precision, "product", count] / 1e9

    by_rows = {}
    for count in rows:
        step_s = seconds[model.facts.precision, "step", count]
        step_gflops = config.step_operations * count / step_s / 1e9
        by_rows[count] = Rows(round(step_s * 1e3, 4), round(step_gflops, 2), round(product_gflops(count), 2))
    peak = max(product_gflops(count) for count in (*rows, PEAK_ROWS))
    return Efficiency(model.facts.precision, round(peak, 2), by_rows)


def main() -> None:
    """Print the efficiency of small batches of the shipped GRU network in int8 and fp32, on one core."""
    for found in measure_small([load_own(GRU, device="cpu", precision=each, threads=1) for each in ("int8", "fp32")]):
        print(f"{found.precision}: products up to {found.peak_gflops:.0f} GFLOP/s; rows, step ms, of peak, product")  # noqa: T201
        for rows, speeds in found.by_rows.items():
            step, product = found.shares(rows)
            print(f"  {rows:4d} {speeds.step_ms:9.3f} {step:8.0%} {product:8.0%}")  # noqa: T201


if __name__ == "__main__":
    main()
