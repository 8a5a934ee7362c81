"""Linear layers of a published network, packed into one table for compiled steps: exact int8 products, or floats.

A layer with a static scale of its inputs computes them as bytes, with weights within ±63 and exact sums; a layer
without one is computed in float32, each sum in the order of the inputs. Rows are bit-identical in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.int8 import kernels as int8_kernels
from model.int8.product import COLUMNS, DEPTH, PANEL_SUMS, first_sums, multiply
from model.int8.product import packed as packed_product
from model.int8.product_table import limits_of
from model.int8.quantized import QuantizedProduct
from model.int8.vectors import LANES
from model.machine.compiled import compiled, int64_at
from model.machine.memory import ALIGNED, KeptArrays
from model.published.compiled import kernels
from model.published.compiled.float_product import float_product
from model.published.compiled.packed import PackedLayers
from model.published.compiled.team import multiply_together
from model.published.scales import Scale, Scales, digest_of_weights, quantized_weights

Floats = NDArray[np.float32]

# columns of the table, int64: addresses and counts. LIMITS is 0 for a layer in floats
WEIGHTS, GROUPS, PANELS, FIRST, MULTIPLIER, BIAS, LIMITS, OFFSETS, INPUTS, VECTORS = range(10)
LINEAR_COLUMNS = 10

SWOOSH_L, SILU, RELU, NO_ACTIVATION = range(4)
NO_SYMBOL = -1e30  # bias of scores that belong to no symbol


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight + bias: weight (K, O) and bias (O,) float32, K and O multiples of 16; `scale` of 8-bit inputs."""

    name: str
    weight: Floats
    bias: Floats
    scale: Scale | None = None

    def widened(self, bias: float = NO_SYMBOL) -> Linear:
        """Return the layer with more outputs, each `bias` for all inputs, up to whole vectors."""
        more = -self.weight.shape[1] % LANES
        weight = np.pad(self.weight, ((0, 0), (0, more)))
        return replace(self, weight=weight, bias=np.pad(self.bias, (0, more), constant_values=bias))


def with_scales(linears: Sequence[Linear], scales: Scales | None, packed: PackedLayers | None = None) -> list[Linear]:
    """Return the layers with the scales of their weights, if there are any, or those that they are packed with."""
    if packed is not None:
        return [replace(linear, scale=packed.scale(linear.name)) for linear in linears]
    by_weights = {} if scales is None else scales.by_weights
    if not by_weights:
        return list(linears)
    return [replace(linear, scale=by_weights.get(digest_of_weights(linear.weight))) for linear in linears]


class Scratch(NamedTuple):
    """Addresses of work space for a product: inputs as bytes, sums, and outputs between two layers as floats.

    `team`: address of what the threads share that compute products together, 0 for one thread.
    """

    inputs: int
    sums: int
    hidden: int
    team: int = 0

    @classmethod
    def taken_from(cls, places: dict[str, Any], prefix: str = "", team: int = 0) -> Scratch:
        """Take the addresses out of those of a work space, by the names in `PARTS`."""
        inputs, sums, hidden = (places.pop(prefix + part) for part in PARTS)
        return cls(inputs, sums, hidden, team)


PARTS = ("inputs", "sums", "hidden")
"""Parts of `Scratch` in work space, in the order of `LinearTable.scratch_bytes`."""


def pack(linear: Linear) -> dict[str, NDArray[Any]]:
    """Return the arrays of a layer as the table has them: `weight`, `bias`, and more with a scale."""
    outputs = linear.weight.shape[1]
    columns = -(-outputs // COLUMNS) * COLUMNS
    bias = np.zeros(columns, np.float32)
    bias[:outputs] = linear.bias
    if linear.scale is None:
        return {"weight": np.asarray(linear.weight, np.float32), "bias": bias}
    weights, steps = quantized_weights(linear.weight)
    scale = linear.scale
    product = QuantizedProduct(np.ascontiguousarray(weights.T), steps, linear.bias, scale.step, scale.zero)
    multiplier = np.zeros(columns, np.float32)
    multiplier[:outputs] = steps * np.float32(scale.step)
    return {
        "weight": packed_product(product),
        "first": first_sums(product),
        "multiplier": multiplier,
        "bias": bias,
        "limits": limits_of(scale.step, scale.zero),
    }


class LinearTable:
    """Packed layers; `address` is that of the table, whose row i is layer i."""

    def __init__(self, linears: Sequence[Linear], *, rows: int, packed: PackedLayers | None = None) -> None:
        """Pack layers for products of at most `rows` rows, or use those of a file where they lie.

        Raises: ValueError for a width not a multiple of 16.
        """
        self._arrays, self._packed = KeptArrays(), packed
        self._lying: list[NDArray[Any]] = []  # arrays that are used where they lie
        self._offsets: dict[int, int] = {}
        self._rows = rows
        self._widest = [max(linear.weight.shape[axis] for linear in linears) for axis in (0, 1)]
        self.address = self._arrays.keep(np.array([self._row(linear) for linear in linears], np.int64))

    @property
    def weight_bytes(self) -> int:
        """Size of the packed layers in bytes."""
        return self._arrays.nbytes + sum(each.nbytes for each in self._lying)

    @property
    def scratch_bytes(self) -> tuple[int, int, int]:
        """Sizes of the parts of `Scratch`, in bytes."""
        inputs, outputs = self._widest
        wide = -(-outputs // COLUMNS) * COLUMNS
        return self._rows * (inputs + ALIGNED) + COLUMNS, self._rows * wide * 4, self._rows * wide * 4

    def _row(self, linear: Linear) -> list[int]:
        inputs, outputs = linear.weight.shape
        if inputs % LANES or outputs % LANES:
            raise ValueError(f"{linear.name}: sizes {inputs} and {outputs} are not multiples of {LANES}")
        parts = None if self._packed is None else self._packed.parts(linear.name)
        at = {name: self._address(part) for name, part in (pack(linear) if parts is None else parts).items()}
        panels = -(-outputs // COLUMNS)
        places = [at.get(name, 0) for name in ("first", "multiplier", "bias", "limits")]
        return [at["weight"], inputs // DEPTH, panels, *places, self._row_offsets(inputs), inputs, outputs // LANES]

    def _address(self, part: NDArray[Any]) -> int:
        """Return the address of an aligned array that does not change, or of a copy."""
        if part.flags.writeable or not part.flags.c_contiguous or part.ctypes.data % ALIGNED:
            return self._arrays.keep(part)
        self._lying.append(part)
        return int(part.ctypes.data)

    def _row_offsets(self, width: int) -> int:
        """Address of the rows' offsets in bytes; a line apart, so that not all rows are in one set of a cache."""
        if width not in self._offsets:
            self._offsets[width] = self._arrays.keep(np.arange(self._rows, dtype=np.int64) * (width + ALIGNED))
        return self._offsets[width]


_sums_swoosh_l, _sums_silu, _sums_relu, _sums_plain = (
    kernels.sums_to_floats(each) for each in (kernels.swoosh_l, kernels.silu, kernels.relu, kernels.same)
)
_bytes_swoosh_l, _bytes_silu = (kernels.sums_to_bytes(each) for each in (kernels.swoosh_l, kernels.silu))
_swoosh_l, _silu, _relu, _plain = (
    kernels.floats_to_floats(each) for each in (kernels.swoosh_l, kernels.silu, kernels.relu, kernels.same)
)


@compiled
def linear_at(table: int, row: int) -> tuple[int, ...]:
    """Return a row of the table."""
    at = int64_at(table + row * LINEAR_COLUMNS * 8)
    return at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9]


@compiled
def quantize_inputs(linear: tuple[int, ...], x: int, stride: int, rows: int, scratch: Scratch) -> None:
    """Quantize rows of floats, `stride` bytes apart, into `scratch.inputs`; for a layer with a scale only."""
    offsets = int64_at(linear[OFFSETS])
    for row in range(rows):
        target = scratch.inputs + offsets[row]
        int8_kernels.float_bytes(x + row * stride, linear[LIMITS], target, linear[INPUTS] // LANES)


@compiled
def multiply_inputs(linear: tuple[int, ...], rows: int, scratch: Scratch) -> None:
    """Multiply the bytes in `scratch.inputs` into `scratch.sums`; for a layer with a scale only."""
    weights, groups, panels, first = linear[WEIGHTS], linear[GROUPS], linear[PANELS], linear[FIRST]
    if scratch.team == 0:
        multiply(scratch.inputs, linear[OFFSETS], rows, weights, groups, panels, first, scratch.sums)
    else:
        multiply_together(
            scratch.team, scratch.inputs, linear[OFFSETS], rows, weights, groups, panels, first, scratch.sums
        )


@compiled
def finish(linear: tuple[int, ...], activation: int, rows: int, scratch: Scratch, out: int, out_stride: int) -> None:
    """Write activation(sums * multiplier + bias) as floats."""
    multiplier, bias, vectors, wide = linear[MULTIPLIER], linear[BIAS], linear[VECTORS], linear[PANELS] * PANEL_SUMS
    for row in range(rows):
        sums, target = scratch.sums + row * wide, out + row * out_stride
        if activation == NO_ACTIVATION:
            _sums_plain(sums, multiplier, bias, target, vectors)
        elif activation == SWOOSH_L:
            _sums_swoosh_l(sums, multiplier, bias, target, vectors)
        elif activation == SILU:
            _sums_silu(sums, multiplier, bias, target, vectors)
        else:
            _sums_relu(sums, multiplier, bias, target, vectors)


@compiled
def finish_as_inputs(
    linear: tuple[int, ...], following: tuple[int, ...], activation: int, rows: int, scratch: Scratch
) -> None:
    """Write activation(sums * multiplier + bias) into `scratch.inputs`, as the bytes of the following layer.

    The activation is SwooshL or SiLU: those between two layers.
    """
    multiplier, bias, vectors, wide = linear[MULTIPLIER], linear[BIAS], linear[VECTORS], linear[PANELS] * PANEL_SUMS
    limits, offsets = following[LIMITS], int64_at(following[OFFSETS])
    for row in range(rows):
        sums, target = scratch.sums + row * wide, scratch.inputs + offsets[row]
        if activation == SWOOSH_L:
            _bytes_swoosh_l(sums, multiplier, bias, limits, target, vectors)
        else:
            _bytes_silu(sums, multiplier, bias, limits, target, vectors)


@compiled
def _activate(linear: tuple[int, ...], activation: int, rows: int, out: int, out_stride: int) -> None:
    """Add the bias of a layer in floats, and apply the activation."""
    bias, vectors = linear[BIAS], linear[VECTORS]
    for row in range(rows):
        target = out + row * out_stride
        if activation == NO_ACTIVATION:
            _plain(target, bias, target, vectors)
        elif activation == SWOOSH_L:
            _swoosh_l(target, bias, target, vectors)
        elif activation == SILU:
            _silu(target, bias, target, vectors)
        else:
            _relu(target, bias, target, vectors)


@compiled
def apply_linear(
    linear: tuple[int, ...],
    activation: int,
    x: int,
    stride: int,
    rows: int,
    scratch: Scratch,
    out: int,
    out_stride: int,
) -> None:
    """Compute activation(x @ weight + bias) of rows of floats; strides in bytes. `out` and `x` do not overlap."""
    if linear[LIMITS] == 0:
        width = linear[VECTORS] * LANES * 4
        float_product(x, stride, rows, linear[WEIGHTS], width, linear[INPUTS], linear[VECTORS], out, out_stride)
        _activate(linear, activation, rows, out, out_stride)
    else:
        quantize_inputs(linear, x, stride, rows, scratch)
        multiply_inputs(linear, rows, scratch)
        finish(linear, activation, rows, scratch, out, out_stride)


@compiled
def add_linear(linear: tuple[int, ...], x: int, stride: int, rows: int, scratch: Scratch, out: int) -> None:
    """Add x @ weight + bias of rows of floats to contiguous rows; `x` is not in `scratch.sums`."""
    width = linear[VECTORS] * LANES * 4
    if linear[LIMITS] == 0:  # the sums of a layer in floats are floats
        apply_linear(linear, NO_ACTIVATION, x, stride, rows, scratch, scratch.sums, width)
        kernels.add(scratch.sums, out, rows * linear[VECTORS])
    else:
        quantize_inputs(linear, x, stride, rows, scratch)
        multiply_inputs(linear, rows, scratch)
        add_sums(linear, rows, scratch, out)


@compiled
def add_sums(linear: tuple[int, ...], rows: int, scratch: Scratch, out: int) -> None:
    """Add sums * multiplier + bias to contiguous rows."""
    wide, width = linear[PANELS] * PANEL_SUMS, linear[VECTORS] * LANES * 4
    for row in range(rows):
        kernels.add_sums(
            scratch.sums + row * wide, linear[MULTIPLIER], linear[BIAS], out + row * width, linear[VECTORS]
        )


@compiled
def feed_forward(
    first: tuple[int, ...],
    second: tuple[int, ...],
    activation: int,
    x: int,
    stride: int,
    rows: int,
    scratch: Scratch,
    out: int,
    out_stride: int,
) -> None:
    """Compute second(activation(first(x))) of rows of floats; `out` may be `x`."""
    if first[LIMITS] != 0 and second[LIMITS] != 0:
        quantize_inputs(first, x, stride, rows, scratch)
        multiply_inputs(first, rows, scratch)
        finish_as_inputs(first, second, activation, rows, scratch)
        multiply_inputs(second, rows, scratch)
        finish(second, NO_ACTIVATION, rows, scratch, out, out_stride)
    else:
        width = first[VECTORS] * LANES * 4
        apply_linear(first, activation, x, stride, rows, scratch, scratch.hidden, width)
        apply_linear(second, NO_ACTIVATION, scratch.hidden, width, rows, scratch, out, out_stride)
