"""Linear layers of compiled published networks: equal to numpy, and each row independent of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.machine.compiled import entry_point
from model.machine.memory import aligned
from model.published.compiled import kernels
from model.published.compiled.linears import (
    NO_ACTIVATION,
    RELU,
    SILU,
    SWOOSH_L,
    Linear,
    LinearTable,
    Scratch,
    apply_linear,
    feed_forward,
    linear_at,
)
from model.published.scales import Scale, quantized_weights

ROWS = 23
WIDTH, HIDDEN = 48, 80
Floats = NDArray[np.float32]


@entry_point
def apply(table: int, activation: int, x: int, rows: int, scratch: Scratch, out: int) -> None:
    apply_linear(linear_at(table, 0), activation, x, WIDTH * 4, rows, scratch, out, HIDDEN * 4)


@entry_point
def apply_both(table: int, activation: int, x: int, rows: int, scratch: Scratch) -> None:
    feed_forward(linear_at(table, 0), linear_at(table, 1), activation, x, WIDTH * 4, rows, scratch, x, WIDTH * 4)


@entry_point
def norms(x: int, bias: int, scale: int, out: int) -> None:
    kernels.bias_norm(x, bias, scale, out, WIDTH // 16)
    kernels.layer_norm(x, bias, bias, out + WIDTH * 4, WIDTH // 16)
    kernels.softmax(x, out + 2 * WIDTH * 4, WIDTH // 16)
    kernels.log_softmax(x, out + 4 * WIDTH * 4, out + 3 * WIDTH * 4, WIDTH // 16)


def swoosh(x: Floats, shift: float, offset: float) -> Floats:
    return np.asarray(np.logaddexp(0, x.astype(np.float64) - shift) - 0.08 * x - offset, np.float32)


ACTIVATIONS: dict[int, Any] = {
    NO_ACTIVATION: lambda x: x,
    SWOOSH_L: lambda x: swoosh(x, 4, 0.035),
    SILU: lambda x: x / (1 + np.exp(-x)),
    RELU: lambda x: np.maximum(x, 0),
}


def linears(scales: tuple[Scale | None, Scale | None]) -> list[Linear]:
    dice = np.random.default_rng(3)

    def floats(*shape: int) -> Floats:
        return dice.standard_normal(shape).astype(np.float32)

    return [
        Linear("first", floats(WIDTH, HIDDEN), floats(HIDDEN), scales[0]),
        Linear("second", floats(HIDDEN, WIDTH) * np.float32(0.125), floats(WIDTH), scales[1]),
    ]


def scratch_of(table: LinearTable) -> tuple[Scratch, list[NDArray[np.uint8]]]:
    parts = [aligned(size) for size in table.scratch_bytes]
    return Scratch(*(int(each.ctypes.data) for each in parts)), parts


def expected(linear: Linear, x: Floats) -> Floats:
    if linear.scale is None:
        return x @ linear.weight + linear.bias
    weight, steps = quantized_weights(linear.weight)
    bytes_of = linear.scale.bytes_of(x).astype(np.int32) - linear.scale.zero
    sums = (bytes_of @ weight.astype(np.int32)).astype(np.float32)
    return np.asarray(sums * (steps * np.float32(linear.scale.step)) + linear.bias, np.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale", [None, Scale.of(-4.0, 3.0)])
def test_a_layer_computes_its_product_and_activation(activation: int, scale: Scale | None) -> None:
    layers = linears((scale, None))
    table = LinearTable(layers, rows=ROWS)
    scratch, _kept = scratch_of(table)
    x = np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(np.float32)
    out = np.zeros((ROWS, HIDDEN), np.float32)
    apply(table.address, activation, x.ctypes.data, ROWS, scratch, out.ctypes.data)
    np.testing.assert_allclose(out, ACTIVATIONS[activation](expected(layers[0], x)), atol=2e-5)
    for row in range(ROWS):
        alone = np.zeros(HIDDEN, np.float32)
        apply(table.address, activation, x[row].ctypes.data, 1, scratch, alone.ctypes.data)
        assert alone.tobytes() == out[row].tobytes()


@pytest.mark.parametrize("scales", [(None, None), (Scale.of(-4, 3), None), (Scale.of(-4, 3), Scale.of(-2, 30))])
@pytest.mark.parametrize("activation", [SWOOSH_L, SILU])
def test_two_layers_give_what_each_gives(scales: tuple[Scale | None, Scale | None], activation: int) -> None:
    layers = linears(scales)
    table = LinearTable(layers, rows=ROWS)
    scratch, _kept = scratch_of(table)
    x = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32)
    hidden = ACTIVATIONS[activation](expected(layers[0], x))
    wanted = expected(layers[1], hidden)
    apply_both(table.address, activation, x.ctypes.data, ROWS, scratch)
    step = 0.0 if scales[1] is None else scales[1].step
    np.testing.assert_allclose(x, wanted, atol=1e-4 + step)  # a byte of the hidden row may round otherwise


def test_norms_and_softmax_are_those_of_their_definitions() -> None:
    x = np.random.default_rng(6).standard_normal(WIDTH).astype(np.float32)
    bias, scale = np.linspace(-1, 1, WIDTH, dtype=np.float32), np.array([0.7], np.float32)
    out = np.zeros((5, WIDTH), np.float32)
    norms(x.ctypes.data, bias.ctypes.data, scale.ctypes.data, out.ctypes.data)
    np.testing.assert_allclose(out[0], x / np.sqrt(np.mean((x - bias) ** 2)) * 0.7, rtol=1e-5)
    normal = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    np.testing.assert_allclose(out[1], normal * bias + bias, atol=1e-5)
    power = np.exp(x - x.max())
    np.testing.assert_allclose(out[2], power / power.sum(), rtol=1e-5)
    np.testing.assert_allclose(out[3], np.log(power / power.sum()), atol=1e-5)


def test_a_width_that_is_not_a_multiple_of_sixteen_is_refused() -> None:
    with pytest.raises(ValueError, match="odd: sizes 50 and 16 are not multiples of 16"):
        LinearTable([Linear("odd", np.zeros((50, 16), np.float32), np.zeros(16, np.float32))], rows=1)
