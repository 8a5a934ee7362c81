"""Vector kernels of published networks, in float32: activations, norms, softmax, small products, depthwise convolution.

Arguments are addresses, bytes from one row to the next (`stride`), and counts; `vectors` counts vectors of sixteen
floats, so widths are multiples of sixteen. All results are bit-identical on every processor (`model.int8.vectors`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from model.int8.kernels import moments, quantized, scaled
from model.int8.vectors import LANES, ROW, Floats, Vectors, kernel

LOG_OF_MORE = (
    *(0.00512610214, -0.0290740647, 0.0775160867, -0.136022476),
    *(0.190768807, -0.24835399, 0.333181217, -0.49999445, 0.999999966),
)
"""log(1 + y) / y on 0 … 1, highest power first, by interpolation at the nine Chebyshev nodes: error 2e-8."""

Activation = Callable[[Floats], Floats]


def swoosh(x: Floats, shift: float, offset: float) -> Floats:
    """Return log(1 + exp(x - shift)) - 0.08 x - offset. Source: Yao et al. 2023, https://arxiv.org/abs/2310.11230."""
    z = x - shift
    y = z.least(-z).exp()  # in 0 … 1
    return y * y.polynomial(LOG_OF_MORE) + z.most(0.0) - x * 0.08 - offset


def swoosh_l(x: Floats) -> Floats:
    """Activation of the feed-forward modules of Zipformer."""
    return swoosh(x, 4.0, 0.035)


def swoosh_r(x: Floats) -> Floats:
    """Activation of the convolution modules of Zipformer."""
    return swoosh(x, 1.0, 0.313261687)


def silu(x: Floats) -> Floats:
    """Activation of Conformer."""
    return x.silu()


def relu(x: Floats) -> Floats:
    """Larger of x and 0."""
    return x.most(0.0)


def same(x: Floats) -> Floats:
    """No activation."""
    return x


def sums_to_floats(activation: Activation) -> Callable[..., None]:
    """Return a kernel: an activation of a product's outputs, from its sums."""

    def activated(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
        def body(index: Any, _: Any) -> Any:
            offset = v.times(index, ROW)
            v.keep(activation(scaled(v, sums, multiplier, bias, offset)), out, offset)
            return []

        v.loop(vectors, [], body)

    return kernel(activated)


def sums_to_bytes(activation: Activation) -> Callable[..., None]:
    """Return a kernel: an activation of a product's outputs, from its sums, quantized for the next product."""

    def activated(v: Vectors, sums: Any, multiplier: Any, bias: Any, limits: Any, out: Any, vectors: Any) -> None:
        def body(index: Any, _: Any) -> Any:
            y = activation(scaled(v, sums, multiplier, bias, v.times(index, ROW)))
            v.keep_bytes(quantized(v, y, limits), out, v.times(index, LANES))
            return []

        v.loop(vectors, [], body)

    return kernel(activated)


def elementwise(compute: Callable[..., Floats]) -> Callable[..., None]:
    """Return a kernel that applies a function to each vector of rows.

    Its arguments are those of the function, then `out`, unless that is one of them and replaced, then the number of
    vectors. `factor` is the address of one number for all elements.
    """
    names = list(inspect.signature(compute).parameters)
    arguments = [*names, *(["vectors"] if "out" in names else ["out", "vectors"])]

    def apply(v: Vectors, *addresses: Any) -> None:
        rows = dict(zip(arguments, addresses, strict=True))
        factors = {name: v.all(rows[name]) for name in names if name == "factor"}

        def body(index: Any, _: Any) -> Any:
            offset = v.times(index, ROW)
            values = [factors[name] if name in factors else v.floats(rows[name], offset) for name in names]
            v.keep(compute(*values), rows["out"], offset)
            return []

        v.loop(rows["vectors"], [], body)

    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    apply.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, plain) for name in ("v", *arguments)]
    )
    return kernel(apply)


def floats_to_floats(activation: Activation) -> Callable[..., None]:
    """Return a kernel: an activation of x + bias; `out` may be `x`."""
    return elementwise(lambda x, bias: activation(x + bias))


add = elementwise(lambda x, out: out + x)
add_scaled = elementwise(lambda x, factor, out: out + x * factor)
multiply_rows = elementwise(lambda x, out: out * x)
bypass = elementwise(lambda before, scale, out: before + (out - before) * scale)
gated = elementwise(lambda x, gate: x * gate.sigmoid())
gated_by_tanh = elementwise(lambda x, gate: x * gate.tanh())
scaled_sum = elementwise(lambda left, right, factor: (left + right) * factor)
scale_row = elementwise(lambda factor, out: out * factor)
silu_row = elementwise(lambda out: out.silu())


@kernel
def add_sums(v: Vectors, sums: Any, multiplier: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Add a product's outputs to a row."""

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(out, offset) + scaled(v, sums, multiplier, bias, offset), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def layer_norm(v: Vectors, x: Any, gain: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute the layer norm of a row; `out` may be `x`."""
    mean, inverse = moments(v, x, vectors)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        y = (v.floats(x, offset) - mean) * inverse * v.floats(gain, offset) + v.floats(bias, offset)
        v.keep(y, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def bias_norm(v: Vectors, x: Any, bias: Any, scale: Any, out: Any, vectors: Any) -> None:
    """Compute BiasNorm of a row: x / rms(x - bias) * scale, with one scale; `out` may be `x`.

    Source: Yao et al. 2023, https://arxiv.org/abs/2310.11230.
    """

    def add_square(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        distance = v.floats(x, offset) - v.floats(bias, offset)
        return [carried[0] + distance * distance]

    square = v.loop(vectors, [v.constant(0.0)], add_square)[0].sum() / v.count(v.times(vectors, LANES))
    factor = v.all(scale) / square.root()

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(x, offset) * factor, out, offset)
        return []

    v.loop(vectors, [], body)


def highest_of(v: Vectors, x: Any, vectors: Any) -> Floats:
    """Return the highest number of a row, at least -1e30, in all lanes."""

    def highest(index: Any, carried: list[Any]) -> Any:
        return [carried[0].most(v.floats(x, v.times(index, ROW)))]

    top: Floats = v.loop(vectors, [v.constant(-1e30)], highest)[0].largest()
    return top


def exponentials(v: Vectors, x: Any, out: Any, vectors: Any) -> tuple[Floats, Floats]:
    """Write exp(x - max x) into `out`, which may be `x`; return the maximum and the sum, in all lanes."""
    top = highest_of(v, x, vectors)

    def add_power(index: Any, carried: list[Any]) -> Any:
        offset = v.times(index, ROW)
        power = (v.floats(x, offset) - top).exp()
        v.keep(power, out, offset)
        return [carried[0] + power]

    return top, v.loop(vectors, [v.constant(0.0)], add_power)[0].sum()


@kernel
def softmax(v: Vectors, x: Any, out: Any, vectors: Any) -> None:
    """Compute softmax of a row; `out` may be `x`. Elements of about -1e30 get about 1e-38, which no sum notices."""
    _, total = exponentials(v, x, out, vectors)
    inverse = v.constant(1.0) / total

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(out, offset) * inverse, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def log_softmax(v: Vectors, x: Any, spare: Any, out: Any, vectors: Any) -> None:
    """Compute log-softmax of a row; `out` may be `x`, `spare` is memory for a row."""
    top, total = exponentials(v, x, spare, vectors)
    level = top + total.log()

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        v.keep(v.floats(x, offset) - level, out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def depthwise(v: Vectors, frames: Any, stride: Any, weights: Any, taps: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute one output frame of a convolution per channel: bias + sum over `taps` frames, `stride` bytes apart.

    `weights`: (taps, channels).
    """
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)

        def add_tap(tap: Any, carried: list[Any]) -> Any:
            frame = v.floats(frames, v.at(v.times(tap, stride), offset))
            return [carried[0] + frame * v.floats(weights, v.at(v.times(tap, width), offset))]

        v.keep(v.loop(taps, [v.floats(bias, offset)], add_tap)[0], out, offset)
        return []

    v.loop(vectors, [], body)
