"""Kernels of the attention network, bit-identical on every processor (`model.int8.vectors`).

Arguments are addresses, and counts of vectors of sixteen; `limits` as in `model.int8.kernels`. Those of `ROWS` rows are
described for one of them.
"""

from __future__ import annotations

from typing import Any

from model.attention_config import GELU_FACTOR
from model.int8.kernels import quantized, scaled
from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel, row_kernel
from model.published.compiled.kernels import same, sums_to_bytes

LARGEST_PROBABILITY = 255.0

plain_bytes = sums_to_bytes(same)
"""(sums, multiplier, bias, limits, out, vectors): a product's outputs, quantized."""


@kernel
def stem_floats(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute x σ(1.702 x) of a product's outputs x."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        x = scaled(v, sums, multiplier, bias, offset)
        v.keep(x * (x * GELU_FACTOR).sigmoid(), out, offset)
        return []

    v.loop(vectors, [], body)


@row_kernel("sums", "out")
def gated(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute a σ(b), rounded to bfloat16, from a product's outputs (a, b), each `vectors` vectors."""
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        gate = scaled(v, sums, multiplier, bias, v.at(offset, width))
        value = scaled(v, sums, multiplier, bias, offset) * gate.sigmoid()
        v.keep(value.half(), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def halves_to_floats(v: Vectors, x: Any, out: Any, vectors: Any) -> None:
    """Convert bfloat16."""

    def body(index: Any, _: Any) -> Any:
        v.keep(v.halves(x, v.times(index, ROW // 2)), out, v.times(index, ROW))
        return []

    v.loop(vectors, [], body)


@row_kernel("frames", "out")
def convolved_bytes(
    v: Vectors, frames: Any, weights: Any, bias: Any, limits: Any, out: Any, width: Any, taps: Any
) -> None:
    """Compute SiLU(bias + sum over `taps` frames) of sixteen channels, quantized.

    Frames and `weights` (taps, channels) are float32, `width` bytes from one to the next.
    """

    def add(tap: Any, carried: list[Any]) -> Any:
        offset = v.times(tap, width)
        return [carried[0] + v.floats(frames, offset) * v.floats(weights, offset)]

    total = v.loop(taps, [v.floats(bias)], add)[0]
    v.keep_bytes(quantized(v, total.silu(), limits), out)


@row_kernel("sums", "scores", "out", "total")
def probability_bytes(
    v: Vectors, sums: Any, offset_sums: Any, factor: Any, mask: Any, scores: Any, out: Any, total: Any, vectors: Any
) -> None:
    """Write exp(s - max s) in units of 1 / 255 as bytes, and their sum into all sixteen floats at `total`.

    s = (sums - offset_sums) * factor + mask, int32 sums and float32 mask; `scores`: memory for floats.
    """
    factors = v.all(factor)

    def highest(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        score = (v.ints(sums, offset) - v.ints(offset_sums, offset)).to_floats() * factors + v.floats(mask, offset)
        v.keep(score, scores, offset)
        return [carried[0].most(score)]

    top = v.loop(vectors, [v.constant(-1e30)], highest)[0].largest()

    def add(index: Any, carried: list[Any]) -> Any:
        power = (v.floats(scores, v.times(index, ROW)) - top).exp() * LARGEST_PROBABILITY
        steps = power.to_ints()
        v.keep_bytes(steps, out, v.times(index, LANES))
        return [carried[0] + steps.to_floats()]

    v.keep(v.loop(vectors, [v.constant(0.0)], add)[0].sum(), total)


@kernel
def averages(v: Vectors, sums: Any, total: Any, out: Any, vectors: Any) -> None:
    """Divide a row of int32 sums by `total` (sixteen floats)."""
    inverse: Floats = v.constant(1.0) / v.floats(total)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.ints(sums, offset).to_floats() * inverse, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def interleaved_frames(v: Vectors, rows: Any, stride: Any, out: Any, vectors: Any) -> None:
    """Interleave four rows of bytes, `stride` bytes apart: (4, C) to (C, 4), C = 16 * `vectors`."""

    def body(index: Any, _: Any) -> Any:
        joined = None
        for row in range(4):
            offset = v.at(v.times(stride, row), v.times(index, LANES))
            part = v.bytes_as_ints(v.at(rows, offset)).shifted_left(8 * row)
            joined = part if joined is None else joined + part
        assert joined is not None
        v.store(joined.value, v.at(out, v.times(index, ROW)))
        return []

    v.loop(vectors, [], body)
