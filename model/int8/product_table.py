"""The table of a network's products, as compiled steps read it, and what both kinds of networks do with a row of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.int8 import kernels
from model.int8.features import Keep
from model.int8.kernels import LIMITS_BYTES
from model.int8.product import COLUMNS, PANEL_SUMS, first_sums, multiply, packed
from model.int8.quantized import LARGEST_INPUT, QuantizedProduct
from model.int8.vectors import LANES, ROW
from model.machine.compiled import ZERO, compiled, int64_at

# columns, int64: addresses and counts
WEIGHTS, GROUPS, PANELS, FIRST, MULTIPLIER, BIAS, LIMITS, GAIN, SHIFT = range(9)
PRODUCT_COLUMNS = 9
"""GAIN and SHIFT are those of the layer norm before the product, if there is one."""
NO_SYMBOL = -1e30  # bias of padding columns


def product_row(product: QuantizedProduct, keep: Keep, padding: float = 0.0) -> list[int]:
    """Return the columns of a product before those of a norm; `padding`: bias of the outputs that fill a panel."""
    weights = packed(product)
    columns = weights.shape[0] * COLUMNS
    return [
        keep(weights),
        weights.shape[1],
        weights.shape[0],
        keep(first_sums(product)),
        keep(_padded(product.scale * np.float32(product.input_scale), columns, 0.0)),
        keep(_padded(product.bias, columns, padding)),
        keep(limits_of(product.input_scale, product.input_zero)),
    ]


def head_row(head: QuantizedProduct, letters: int, keep: Keep) -> list[int]:
    """Return the columns of a head with `letters` outputs, then phones, if any, which start at a vector boundary."""
    rows = -letters % LANES if len(head.bias) > letters else 0

    def spread(values: NDArray[Any], fill: float) -> NDArray[Any]:
        return np.insert(values, [letters] * rows, fill, axis=0)

    in_groups = dataclasses.replace(
        head, weight=spread(head.weight, 0), scale=spread(head.scale, 0.0), bias=spread(head.bias, NO_SYMBOL)
    )
    return product_row(in_groups, keep, NO_SYMBOL)


def limits_of(scale: float, zero: int) -> NDArray[np.uint8]:
    """Return the record for quantizing a product's inputs, from their scale and zero point."""
    return limits_record(np.float32(1.0) / np.float32(scale), -zero, LARGEST_INPUT - zero, zero)


def limits_record(inverse: np.float32, least: int, most: int, zero: int) -> NDArray[np.uint8]:
    """Return the record that `model.int8.kernels` reads at `limits`: 1 / scale, range in units of it, zero point."""
    record = np.zeros(LIMITS_BYTES, np.uint8)
    record[:12].view(np.float32)[:] = inverse, least, most
    record[12:].view(np.int32)[:] = zero
    return record


def _padded(values: NDArray[np.float32], length: int, fill: float) -> NDArray[np.float32]:
    padded = np.full(length, fill, np.float32)
    padded[: len(values)] = values
    return padded


@compiled
def product_at(products: int, row: int) -> tuple[int, ...]:
    """Return a row of the table."""
    table = int64_at(products + row * PRODUCT_COLUMNS * 8)
    return table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7], table[8]


@compiled
def multiply_rows(product: tuple[int, ...], inputs: int, offsets: int, rows: int, sums: int) -> None:
    """Compute the sums of `rows` rows of inputs; see `model.int8.product.multiply`."""
    multiply(inputs, offsets, rows, product[WEIGHTS], product[GROUPS], product[PANELS], product[FIRST], sums)


@compiled
def log_probs(head: tuple[int, ...], rows: int, sums: int, letters: int, phones: int, scratch: int, out: int) -> None:
    """Write the log-probabilities of `rows` rows of a head's sums, (letters + phones) float32 each.

    Letters and phones have a log-softmax each; `phones` may be 0. `scratch`: memory for a row.
    """
    every = head[PANELS] * (COLUMNS // LANES)
    first = (letters + LANES - 1) // LANES if phones else every
    for row in range(rows):
        here, there = sums + row * head[PANELS] * PANEL_SUMS, out + row * (letters + phones) * 4
        _log_softmax(head, here, ZERO, first, scratch)
        kernels.copy_bytes(there, scratch, letters * 4)
        if phones:
            _log_softmax(head, here, first, every - first, scratch)
            kernels.copy_bytes(there + letters * 4, scratch, phones * 4)


@compiled
def _log_softmax(head: tuple[int, ...], sums: int, first: int, vectors: int, out: int) -> None:
    """Compute log-softmax over the columns of `vectors` vectors from vector `first`."""
    skipped = first * ROW  # bytes: sums, multipliers and biases are four each
    kernels.log_softmax(sums + skipped, head[MULTIPLIER] + skipped, head[BIAS] + skipped, out, vectors)
