"""A product with weights of 4 bits by group, against the exact product in 8 bits: processor time and bytes.

Two weights share a byte; 32 inputs and one output share a scale in bfloat16. Inputs are the same unsigned bytes. The
sum of a group is an exact integer, scaled and added to the float sum of its output in the order of the groups, so rows
do not depend on each other. Nibbles stay in the high half of their byte: sums are 16 times as large, which the scale
takes back. Needs AVX-512 VNNI. No model has such weights: `docs/decisions/arithmetic.md` says what they would need.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from model.int8.product import COLUMNS, DEPTH, first_sums, multiplied, packed
from model.int8.quantized import QuantizedProduct
from model.int8.vectors import F32, I8, I16, I32, LANES, Vectors, intrinsic_call, kernel, splat, vector
from model.machine.compiler import ir

GROUP = 32  # inputs that share a scale
PAIRS = GROUP // (2 * DEPTH)  # rows of bytes of a group
PANEL = COLUMNS * DEPTH  # bytes of a panel for eight inputs
SHAPE = (4_096, 1_024)  # outputs and inputs of the measured product
COPIES, TURNS = 24, 9  # products of different weights, more than the caches hold; rounds of them
Halves = NDArray[np.uint16]


WORDS, OCTETS, FLOATS, SHORTS = vector(I32, LANES), vector(I8, 64), vector(F32, LANES), vector(I16, 2 * LANES)


def _nibbles(v: Vectors, address: Any) -> list[list[Any]]:
    """Load a panel's weights for eight inputs: for the first and the last four of them, both halves of the columns."""
    b, high = v.builder, ir.Constant(OCTETS, [-16] * 64)
    both = [v.load(v.at(address, 64 * half), OCTETS) for half in range(2)]
    moved = [b.bitcast(b.shl(b.bitcast(each, SHORTS), ir.Constant(SHORTS, [4] * 2 * LANES)), OCTETS) for each in both]
    return [[b.and_(each, high) for each in part] for part in (moved, both)]


def _scaled(v: Vectors, first: Any, second: Any, scales: Any) -> Any:
    """Return the sum of two vectors of integers times scales in bfloat16 at an address."""
    b = v.builder
    bits = b.shl(b.zext(v.load(scales, vector(I16, LANES)), WORDS), ir.Constant(WORDS, [16] * LANES))
    return b.fmul(b.sitofp(b.add(first, second), FLOATS), b.bitcast(bits, FLOATS))


def _tile(rows: int) -> Callable[..., None]:
    """Return a kernel for `rows` rows of one panel."""

    def tile(v: Vectors, inputs: Any, width: Any, weights: Any, groups: Any, scales: Any, sums: Any, row: Any) -> None:  # noqa: PLR0917 - compiled code has no keywords
        b = v.builder
        starts = [v.at(inputs, v.times(width, number)) for number in range(rows)]

        def group(index: Any, carried: list[Any]) -> list[Any]:
            totals = [[[ir.Constant(WORDS, [0] * LANES)] * 2 for _ in range(2)] for _ in range(rows)]
            for pair, number, part in product(range(PAIRS), range(rows), range(2)):
                if number == part == 0:
                    parts = _nibbles(v, v.at(weights, v.at(v.times(index, PAIRS * PANEL), pair * PANEL)))
                four = v.at(starts[number], v.at(v.times(index, GROUP), DEPTH * (2 * pair + part)))
                one = splat(b, v.load(four, I32), LANES)
                for half, total in enumerate(totals[number]):
                    each = b.bitcast(parts[part][half], WORDS)
                    total[part] = intrinsic_call(b, "llvm.x86.avx512.vpdpbusd.512", WORDS, total[part], one, each)
            places = [v.at(scales, v.at(v.times(index, 2 * COLUMNS), 2 * LANES * half)) for half in range(2)]
            added = [_scaled(v, *total, place) for both in totals for total, place in zip(both, places, strict=True)]
            return [b.fadd(before, each) for before, each in zip(carried, added, strict=True)]

        for place, result in enumerate(v.loop(groups, [ir.Constant(FLOATS, [0.0] * LANES)] * 2 * rows, group)):
            number, half = divmod(place, 2)
            v.store(result, v.at(sums, v.at(v.times(row, number), 4 * LANES * half)))

    return kernel(tile)


@cache
def product_of(rows: int) -> Callable[..., None]:
    """Return the product of `rows` rows: addresses of inputs, weights, scales and sums, and counts."""
    tile = _tile(rows)

    def multiply(inputs: int, width: int, weights: int, groups: int, panels: int, scales: int, sums: int) -> None:  # noqa: PLR0917
        for panel in range(panels):
            own, factors = weights + panel * groups * PAIRS * PANEL, scales + panel * groups * 2 * COLUMNS
            tile(inputs, width, own, groups, factors, sums + panel * 4 * COLUMNS, panels * 4 * COLUMNS)

    return numba.njit(nogil=True)(multiply)  # type: ignore[no-any-return]


def packed_nibbles(weights: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return weights (out, in) of -8 to 7 as tiles read them: (panels, in / 8, 32, 4), two in a byte."""
    outputs, inputs = weights.shape
    parts = weights.reshape(outputs // COLUMNS, COLUMNS, inputs // 8, 2, DEPTH).transpose(3, 0, 2, 1, 4)
    return np.ascontiguousarray(((parts[0] & 15) | (parts[1] << 4)).astype(np.uint8))


def scaled_sums(
    rows: NDArray[np.uint8], weights: NDArray[np.uint8], scales: Halves
) -> Callable[[], NDArray[np.float32]]:
    """Return a function that computes the product of rows (R, in), 16 times as large, into the same memory (R, out)."""
    panels, groups = len(weights), rows.shape[1] // GROUP
    packed_scales = np.ascontiguousarray(scales.reshape(panels, COLUMNS, groups).transpose(0, 2, 1))
    sums, multiply = np.zeros((len(rows), panels * COLUMNS), np.float32), product_of(len(rows))

    def call() -> NDArray[np.float32]:
        places = weights.ctypes.data, groups, panels, packed_scales.ctypes.data, sums.ctypes.data
        multiply(rows.ctypes.data, rows.shape[1], *places)
        return sums

    return call


def main() -> None:
    """Print microseconds of processor time of one product, the median over rounds in turn, and the bytes of weights."""
    dice = np.random.default_rng(1)
    whole = QuantizedProduct(
        dice.integers(-63, 64, SHAPE, np.int8),
        np.ones(SHAPE[0], np.float32),
        np.zeros(SHAPE[0], np.float32),
        np.float32(1),
        0,
    )
    eights, first = [packed(whole).copy() for _ in range(COPIES)], first_sums(whole)
    fours = [packed_nibbles(dice.integers(-8, 8, SHAPE, np.int8)) for _ in range(COPIES)]
    scales = np.full((SHAPE[0], SHAPE[1] // GROUP), 0x3C00, np.uint16)
    print(f"bytes: {eights[0].nbytes} in 8 bits, {fours[0].nbytes + scales.nbytes} in 4")  # noqa: T201
    for count in (1, 2, 4):
        rows = dice.integers(0, 256, (count, SHAPE[1]), np.uint8)
        offsets, sums = np.arange(count, dtype=np.int64) * SHAPE[1], np.zeros((count, SHAPE[0]), np.int32)
        calls = [scaled_sums(rows, each, scales) for each in fours]

        def exact(weights: NDArray[np.int8], rows: Any = rows, offsets: Any = offsets, sums: Any = sums) -> None:
            where = rows.ctypes.data, offsets.ctypes.data, len(rows), weights.ctypes.data
            multiplied(*where, SHAPE[1] // DEPTH, SHAPE[0] // COLUMNS, first.ctypes.data, sums.ctypes.data)

        seconds: dict[str, list[float]] = {"8": [], "4": []}
        for _ in range(TURNS + 1):
            for name, works in (("8", [lambda each=each: exact(each) for each in eights]), ("4", calls)):
                began = time.thread_time()
                for work in works:
                    work()
                seconds[name].append((time.thread_time() - began) / COPIES)
        eight, four = (1e6 * statistics.median(seconds[name][1:]) for name in ("8", "4"))
        print(f"{count} rows: {eight:.0f} us in 8 bits, {four:.0f} in 4: {eight / four:.2f} times as fast")  # noqa: T201


if __name__ == "__main__":
    main()
