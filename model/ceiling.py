"""How fast the bare step is here, and the matrix product that bounds it: the ceiling of every served figure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.acoustic import AcousticModel
from model.caches import SLOW_NS, read_ns, weight_bytes

WARM_UP, RUNS = 5, 30
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Median milliseconds of a step by batch size; products in 10^9 operations a second, at the largest batch.

    `read_ns`: median nanoseconds of a read from as much memory as the weights take, on a CPU, and whether so short a
    time says that they stay in its caches.
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
        """Part of the product's speed that a step of the largest batch reaches."""
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
    """Return the step that serves: in slabs on a CPU, and timed until its answer is here on a GPU."""
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
