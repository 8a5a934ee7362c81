"""Kernels between two products, one row at a time, in float32: scales, gates, norms, quantization, log-softmax.

Arguments are addresses, and counts of vectors of sixteen: a row's width must be a multiple of sixteen. `limits` is the
address of the range of a product's inputs: 1 / scale, least and largest input in units of it (float32), zero point
(int32).
"""

from __future__ import annotations

from typing import Any

from model.int8.vectors import LANES, ROW, Floats, Ints, Vectors, kernel, row_kernel

NORM_EPSILON = 1e-5  # of torch.nn.LayerNorm
LIMITS_BYTES = 16


def quantized(v: Vectors, x: Floats, limits: Any) -> Ints:
    """Return clip(rint(x / scale) + zero, 0, 255)."""
    steps = (x * v.all(limits)).most(v.all(limits, 4)).least(v.all(limits, 8))
    return steps.to_ints() + v.all_ints(limits, 12)


def scaled(v: Vectors, sums: Any, multiplier: Any, bias: Any, offset: Any) -> Floats:
    """Return the outputs of a product from its sums."""
    return v.ints(sums, offset).to_floats() * v.floats(multiplier, offset) + v.floats(bias, offset)


def quantized_silu(v: Vectors, sums: Any, multiplier: Any, bias: Any, limits: Any, out: Any, vectors: Any) -> None:
    """Compute SiLU of a product's outputs, quantized for the next product."""

    def body(index: Any, _: Any) -> Any:
        y = scaled(v, sums, multiplier, bias, v.times(index, ROW)).silu()
        v.keep_bytes(quantized(v, y, limits), out, v.times(index, LANES))
        return []

    v.loop(vectors, [], body)


silu_bytes, silu_rows = kernel(quantized_silu), row_kernel("sums", "out")(quantized_silu)


@kernel
def silu_floats(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute SiLU of a product's outputs."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(scaled(v, sums, multiplier, bias, offset).silu(), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def float_bytes(v: Vectors, x: Any, limits: Any, out: Any, vectors: Any) -> None:
    """Quantize a row."""

    def body(index: Any, _: Any) -> Any:
        v.keep_bytes(quantized(v, v.floats(x, v.times(index, ROW)), limits), out, v.times(index, LANES))
        return []

    v.loop(vectors, [], body)


def moments(v: Vectors, x: Any, vectors: Any) -> tuple[Floats, Floats]:
    """Return mean and inverse standard deviation of a row, in all lanes, as in torch.nn.LayerNorm.

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450.
    """
    zero = v.constant(0.0)
    width = v.count(v.times(vectors, LANES))

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + v.floats(x, v.times(index, ROW))]

    mean = v.loop(vectors, [zero], add)[0].sum() / width

    def add_square(index: Any, carried: list[Any]) -> Any:
        distance = v.floats(x, v.times(index, ROW)) - mean
        return [carried[0] + distance * distance]

    variance = v.loop(vectors, [zero], add_square)[0].sum() / width
    return mean, v.constant(1.0) / (variance + NORM_EPSILON).root()


def quantized_norm(v: Vectors, x: Any, gain: Any, bias: Any, limits: Any, out: Any, vectors: Any) -> None:
    """Compute the quantized layer norm of a row."""
    mean, inverse = moments(v, x, vectors)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        y = (v.floats(x, offset) - mean) * inverse * v.floats(gain, offset) + v.floats(bias, offset)
        v.keep_bytes(quantized(v, y, limits), out, v.times(index, LANES))
        return []

    v.loop(vectors, [], body)


norm_bytes, norm_rows = kernel(quantized_norm), row_kernel("x", "out")(quantized_norm)


@kernel
def gates(
    v: Vectors, inputs: Any, input_multiplier: Any, input_bias: Any, recurrent: Any, recurrent_multiplier: Any,
    recurrent_bias: Any, hidden: Any, x: Any, limits: Any, out: Any, vectors: Any,
) -> None:  # fmt: skip
    """Compute one frame of a GRU cell: replace the state, add it to `x`, and quantize it for the next frame.

    The sums of both products hold reset, update and candidate in this order (`GRULayer` in torch).
    """
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        at_reset = v.times(index, ROW)
        at_update = v.at(at_reset, width)
        at_candidate = v.at(at_update, width)

        def both(offset: Any) -> tuple[Floats, Floats]:
            left = scaled(v, inputs, input_multiplier, input_bias, offset)
            return left, scaled(v, recurrent, recurrent_multiplier, recurrent_bias, offset)

        left, right = both(at_reset)
        reset = (left + right).sigmoid()
        left, right = both(at_update)
        update = (left + right).sigmoid()
        left, right = both(at_candidate)
        candidate = (left + reset * right).tanh()
        state = candidate + update * (v.floats(hidden, at_reset) - candidate)
        v.keep(state, hidden, at_reset)
        v.keep(v.floats(x, at_reset) + state, x, at_reset)
        v.keep_bytes(quantized(v, state, limits), out, v.times(index, LANES))
        return []

    v.loop(vectors, [], body)


@kernel
def float_halves(v: Vectors, x: Any, out: Any, vectors: Any) -> None:
    """Round a row to bfloat16."""

    def body(index: Any, _: Any) -> Any:
        v.keep_halves(v.floats(x, v.times(index, ROW)), out, v.times(index, ROW // 2))
        return []

    v.loop(vectors, [], body)


@kernel
def lookahead(v: Vectors, frames: Any, weights: Any, out: Any, vectors: Any, taps: Any) -> None:
    """Compute one frame of the row convolution from `taps` bfloat16 frames, this one and following ones."""
    width, half = v.times(vectors, ROW), v.times(vectors, ROW // 2)

    def body(index: Any, _: Any) -> Any:
        offset, half_offset = v.times(index, ROW), v.times(index, ROW // 2)

        def add(tap: Any, carried: list[Any]) -> Any:
            frame = v.halves(frames, v.at(v.times(tap, half), half_offset))
            return [carried[0] + frame * v.floats(weights, v.at(v.times(tap, width), offset))]

        v.keep(v.loop(taps, [v.constant(0.0)], add)[0], out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def log_softmax(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute log-probabilities from a product's sums; padding columns have a bias of about minus infinity."""

    def highest(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        y = scaled(v, sums, multiplier, bias, offset)
        v.keep(y, out, offset)
        return [carried[0].most(y)]

    top = v.loop(vectors, [v.constant(-1e30)], highest)[0].largest()

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + (v.floats(out, v.times(index, ROW)) - top).exp()]

    total = v.loop(vectors, [v.constant(0.0)], add)[0].sum()
    level = top + total.log()

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(out, offset) - level, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def copy_bytes(v: Vectors, to: Any, source: Any, size: Any) -> None:
    """Copy `size` bytes; the two ranges do not overlap."""
    v.copy(to, source, size)
