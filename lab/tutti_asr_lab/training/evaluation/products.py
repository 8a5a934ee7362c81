"""Speed of the 8-bit matrix product, compared with torch's products.

`python -m tutti_asr_lab.training.evaluation.products` prints microseconds per product.

One matrix of the shipped width, 416 -> 1,248, one thread; rounds of the products alternate. FBGEMM ignores the
variables that limit torch and oneDNN to an older processor's instructions, so it always uses what the processor has.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.int8.product import sums_of
from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT, QuantizedProduct
from model.machine.instructions import instruction_set
from model.machine.precision import multiplies_bf16

WIDTH, OUTPUTS = 416, 1_248
ROWS = (1, 4, 8, 16, 32, 64, 128)
ROUNDS = 9
ROUND_S = 0.01

Product = Callable[[], object]


def contenders(rows: int) -> dict[str, Product]:
    """Products to compare, by name: calls that multiply `rows` rows once."""
    random = np.random.default_rng(1)
    integers = random.integers(0, LARGEST_INPUT + 1, (rows, WIDTH), dtype=np.uint8)
    weight = random.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (OUTPUTS, WIDTH)).astype(np.int8)
    ones = np.ones(OUTPUTS, np.float32)
    floats, weights = torch.from_numpy(integers.astype(np.float32)), torch.from_numpy(weight.astype(np.float32))
    found: dict[str, Product] = {
        f"here, {instruction_set()}": sums_of(QuantizedProduct(weight, ones, 0 * ones, 1.0, 128), integers)
    }
    for engine in ("fbgemm", "onednn"):
        if engine in torch.backends.quantized.supported_engines:
            found[f"torch int8, {engine}"] = _quantized(engine, floats, weights)
    found["fp32"] = lambda: functional.linear(floats, weights)
    if torch._C._has_mkldnn and multiplies_bf16():
        found["bf16"] = _packed(floats.bfloat16(), weights.bfloat16())
    return found


def _quantized(engine: str, x: Tensor, weight: Tensor) -> Product:
    torch.backends.quantized.engine = engine
    packed = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8), None)
    rows = torch.quantize_per_tensor(x, 1.0, 128, torch.quint8)

    def call() -> object:
        torch.backends.quantized.engine = engine
        return torch.ops.quantized.linear(rows, packed, 1_000.0, 128)

    return call


def _packed(x: Tensor, weight: Tensor) -> Product:
    """Product as in the traced step of `model.torch_network.traced`, with the weights packed once."""
    packed, bias = torch.ops.mkldnn._reorder_linear_weight(weight), weight.new_zeros(OUTPUTS)
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@torch.inference_mode()
def measure(rows: int) -> dict[str, float]:
    """Median microseconds of each product of `rows` rows."""
    calls = contenders(rows)
    times: Mapping[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(_round_us(call))
    return {name: statistics.median(each) for name, each in times.items()}


def _round_us(call: Product) -> float:
    """Mean microseconds of a call over `ROUND_S`, after two calls to warm up."""
    call()
    call()
    count, elapsed_s, began = 0, 0.0, time.perf_counter()
    while count == 0 or elapsed_s < ROUND_S:
        call()
        count += 1
        elapsed_s = time.perf_counter() - began
    return elapsed_s / count * 1e6


def table(found: Mapping[int, Mapping[str, float]]) -> str:
    """Markdown table: one line per product, one column per number of rows."""
    names = list(next(iter(found.values())))
    lines = ["| rows | " + " | ".join(map(str, found)) + " |", "|---" * (len(found) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{each[name]:,.0f}" for each in found.values()) + " |" for name in names]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tutti_asr_lab.training.evaluation.products", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="Rows that are multiplied together.")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
    print(table({rows: measure(rows) for rows in parser.parse_args(arguments).rows}))  # noqa: T201


if __name__ == "__main__":
    main()
