"""Kernels of the encoder-decoder network, one row at a time, bit-identical on every processor (`model.int8.vectors`).

Arguments are addresses, and counts of vectors of sixteen. Inputs of a product have a scale for each row, computed from
the row: at `scale`, in all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.int8.kernels import moments
from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel
from model.published.compiled.kernels import exponentials, highest_of, same

LARGEST_BYTE = 127.0  # of a rounded input, whose zero is `ZERO_POINT`
ZERO_POINT = 128
LARGEST_SHORT = 8_000.0  # 2,016 of them times weights of 127 are below 2 ** 31
DEEP = 3  # vectors of a head
KEYS = 4  # vectors of keys whose scores are computed together
MASKED = -1e30
_LEAST = 1e-30  # largest input of a row of zeros, whose inverse is finite
_ROOT_HALF = 0.7071067811865476
_ERF_RATE = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Highest power first. Source: Abramowitz and Stegun 1964, 7.1.26; absolute error 1.5e-7."""


def gelu(x: Floats) -> Floats:
    """Return x Φ(x)."""
    z = x * _ROOT_HALF
    size = z.most(-z)
    t = Vectors(x.builder).constant(1.0) / (size * _ERF_RATE + 1.0)
    tail = t.polynomial(_ERF) * t * (-(size * size)).exp()  # 1 - erf(|z|)
    half = tail * 0.5
    below = Floats(
        x.builder,
        x.builder.select(
            x.builder.fcmp_ordered("<", x.value, Vectors(x.builder).constant(0.0).value),
            half.value,
            (-half + 1.0).value,
        ),
    )
    return x * below


@kernel
def norm(v: Vectors, x: Any, gain: Any, out: Any, vectors: Any) -> None:
    """Compute the layer norm of a row, without a shift."""
    mean, inverse = moments(v, x, vectors)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep((v.floats(x, offset) - mean) * inverse * v.floats(gain, offset), out, offset)
        return []

    v.loop(vectors, [], body)


def _largest(v: Vectors, x: Any, vectors: Any) -> Floats:
    """Return the largest absolute number of a row, in all lanes."""

    def most(index: Any, carried: list[Any]) -> Any:
        number = v.floats(x, v.times(index, ROW))
        return [carried[0].most(number).most(-number)]

    largest: Floats = v.loop(vectors, [v.constant(_LEAST)], most)[0].largest()
    return largest


@kernel
def row_bytes(v: Vectors, x: Any, scale: Any, out: Any, vectors: Any) -> None:
    """Round a row to bytes around `ZERO_POINT`, and write its scale."""
    largest = _largest(v, x, vectors)
    inverse = v.constant(LARGEST_BYTE) / largest
    v.keep(largest / LARGEST_BYTE, scale)

    def body(index: Any, _: Any) -> Any:
        steps = (v.floats(x, v.times(index, ROW)) * inverse).to_ints()
        v.keep_bytes(steps + ZERO_POINT, out, v.times(index, LANES))
        return []

    v.loop(vectors, [], body)


@kernel
def largest_of(v: Vectors, x: Any, out: Any, vectors: Any) -> None:
    """Raise the number at `out`, in all lanes, to the largest absolute number of a row."""
    v.keep(v.floats(out).most(_largest(v, x, vectors)), out)


@kernel
def row_shorts(v: Vectors, x: Any, largest: Any, out: Any, vectors: Any) -> None:
    """Round a row to 16 bits; `largest` is the largest absolute number of all rows with its scale."""
    inverse = v.constant(LARGEST_SHORT) / v.floats(largest)

    def body(index: Any, _: Any) -> Any:
        steps = (v.floats(x, v.times(index, ROW)) * inverse).to_ints()
        v.keep_shorts(steps, out, v.times(index, ROW // 2))
        return []

    v.loop(vectors, [], body)


@kernel
def short_scale(v: Vectors, largest: Any, scale: Any) -> None:
    """Write the scale of rows of 16 bits."""
    v.keep(v.floats(largest) / LARGEST_SHORT, scale)


def _output(v: Vectors, sums: Any, multiplier: Any, bias: Any, scale: Floats, offset: Any) -> Floats:
    return v.ints(sums, offset).to_floats() * (v.floats(multiplier, offset) * scale) + v.floats(bias, offset)


def _outputs(function: Callable[[Floats], Floats]) -> Callable[..., None]:
    """Return a kernel that computes a function of a product's outputs."""

    def outputs(v: Vectors, sums: Any, multiplier: Any, bias: Any, scale: Any, out: Any, vectors: Any) -> None:
        factor = v.floats(scale)

        def body(index: Any, _: Any) -> Any:
            offset = v.times(index, ROW)
            v.keep(function(_output(v, sums, multiplier, bias, factor, offset)), out, offset)
            return []

        v.loop(vectors, [], body)

    return kernel(outputs)


plain_outputs = _outputs(same)
gelu_outputs = _outputs(gelu)


@kernel
def add_outputs(v: Vectors, sums: Any, multiplier: Any, bias: Any, scale: Any, out: Any, vectors: Any) -> None:
    """Add a product's outputs to a row."""
    factor = v.floats(scale)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(out, offset) + _output(v, sums, multiplier, bias, factor, offset), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def gated_outputs(v: Vectors, sums: Any, multiplier: Any, bias: Any, scale: Any, out: Any, vectors: Any) -> None:
    """Compute a SiLU(b) from a product's outputs (a, b), each `vectors` vectors."""
    factor, width = v.floats(scale), v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        gate = _output(v, sums, multiplier, bias, factor, v.at(offset, width)).silu()
        v.keep(_output(v, sums, multiplier, bias, factor, offset) * gate, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def rotate(v: Vectors, x: Any, rotation: Any, heads: Any) -> None:
    """Turn the first two vectors of each head, (left, right), by angles whose cosines and sines are at `rotation`.

    Source: Su et al. 2021 (arXiv:2104.09864).
    """
    cosine, sine = v.floats(rotation), v.floats(rotation, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, DEEP * ROW)
        left, right = v.floats(x, offset), v.floats(x, v.at(offset, ROW))
        v.keep(left * cosine - right * sine, x, offset)
        v.keep(right * cosine + left * sine, x, v.at(offset, ROW))
        return []

    v.loop(heads, [], body)


@kernel
def scores(
    v: Vectors, query: Any, keys: Any, stride: Any, factor: Any, mask: Any, out: Any, deep: Any, groups: Any
) -> None:
    """Compute factor * (query · key) + mask for `groups` groups of 64 keys, (deep, keys) with `stride` bytes a row."""
    factors = v.all(factor)

    def body(group: Any, _: Any) -> Any:
        first = v.times(group, KEYS * ROW)

        def add(dimension: Any, carried: list[Any]) -> Any:
            number = v.all(query, v.times(dimension, 4))
            row = v.at(keys, v.at(v.times(dimension, stride), first))
            return [total + number * v.floats(row, ROW * index) for index, total in enumerate(carried)]

        for index, total in enumerate(v.loop(deep, [v.constant(0.0)] * KEYS, add)):
            offset = v.at(first, ROW * index)
            v.keep(total * factors + v.floats(mask, offset), out, offset)
        return []

    v.loop(groups, [], body)


@kernel
def mixed_values(v: Vectors, row: Any, vectors: Any, values: Any, stride: Any, count: Any, out: Any) -> None:
    """Compute the average of `count` rows of values, weighted by the softmax of the scores in `row`, for one head.

    The scores, `vectors` vectors, are replaced by their powers.
    """
    _, total = exponentials(v, row, row, vectors)

    def add(index: Any, carried: list[Any]) -> Any:
        weight, value = v.all(row, v.times(index, 4)), v.at(values, v.times(index, stride))
        return [one + weight * v.floats(value, ROW * part) for part, one in enumerate(carried)]

    for part, mixed in enumerate(v.loop(count, [v.constant(0.0)] * DEEP, add)):
        v.keep(mixed / total, out, ROW * part)


@kernel
def filtered(v: Vectors, samples: Any, weights: Any, out: Any, taps: Any, vectors: Any) -> None:
    """Compute tanh of the products of `taps` samples, float32, with the weights (taps, channels)."""
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)

        def add(tap: Any, carried: list[Any]) -> Any:
            return [carried[0] + v.all(samples, v.times(tap, 4)) * v.floats(weights, v.at(v.times(tap, width), offset))]

        v.keep(v.loop(taps, [v.constant(0.0)], add)[0].tanh(), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def row_sum(v: Vectors, x: Any, mean: Any, out: Any, vectors: Any) -> None:
    """Write the sum of a row and that of its squared distances from the number at `mean`."""
    center = v.floats(mean)

    def add(index: Any, carried: list[Any]) -> Any:
        number = v.floats(x, v.times(index, ROW))
        distance = number - center
        return [carried[0] + number, carried[1] + distance * distance]

    total, squares = v.loop(vectors, [v.constant(0.0)] * 2, add)
    v.keep(total.sum(), out)
    v.keep(squares.sum(), out, ROW)


@kernel
def affine(v: Vectors, x: Any, mean: Any, inverse: Any, gain: Any, bias: Any, vectors: Any) -> None:
    """Replace a row by (x - mean) * inverse * gain + bias."""
    center, factor = v.floats(mean), v.floats(inverse)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        y = (v.floats(x, offset) - center) * factor * v.floats(gain, offset) + v.floats(bias, offset)
        v.keep(y, x, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def fill(v: Vectors, out: Any, number: Any, vectors: Any) -> None:
    """Write the float at the address `number` into all lanes of a row."""
    value = v.all(number)

    def body(index: Any, _: Any) -> Any:
        v.keep(value, out, v.times(index, ROW))
        return []

    v.loop(vectors, [], body)


@kernel
def log_total(v: Vectors, x: Any, out: Any, vectors: Any) -> None:
    """Write the largest number of a row, and the logarithm of the sum of exp(x - largest)."""
    top = highest_of(v, x, vectors)

    def add(index: Any, carried: list[Any]) -> Any:
        return [carried[0] + (v.floats(x, v.times(index, ROW)) - top).exp()]

    total = v.loop(vectors, [v.constant(0.0)], add)[0].sum()
    v.keep(top, out)
    v.keep(total.log(), out, ROW)
