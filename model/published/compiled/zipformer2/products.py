"""Linear layers of Zipformer 2 whose outputs are added to frames, and access to the states of a block's streams."""

from __future__ import annotations

from model.int8.product import PANEL_SUMS
from model.int8.vectors import ROW
from model.machine.compiled import compiled, int64_at
from model.published.compiled import kernels
from model.published.compiled.linears import (
    BIAS,
    LIMITS,
    MULTIPLIER,
    NO_ACTIVATION,
    PANELS,
    SWOOSH_L,
    VECTORS,
    apply_linear,
    finish_as_inputs,
    linear_at,
    multiply_inputs,
    quantize_inputs,
)
from model.published.compiled.zipformer2.plan import Plan

States = tuple[int, int, int]
"""Addresses of the slots of a block's streams (int64) and of the slab of states, bytes from one state to the next."""


@compiled
def state_of(states: States, row: int) -> int:
    """Return the address of a stream's state."""
    slots, slab, stride = states
    slot: int = int64_at(slots)[row]
    return slab + slot * stride


@compiled
def steps_of(state: int) -> int:
    """Return the number of steps of a stream."""
    steps: int = int64_at(state)[0]
    return steps


@compiled
def add_linear(plan: Plan, linear: int, x: int, stride: int, rows: int, out: int) -> None:
    """Add a linear layer of rows of `x` to contiguous rows."""
    layer = linear_at(plan.constants.linears, linear)
    if layer[LIMITS] == 0:
        width = layer[VECTORS] * ROW
        apply_linear(layer, NO_ACTIVATION, x, stride, rows, plan.scratch, plan.work.spare, width)
        kernels.add(plan.work.spare, out, rows * layer[VECTORS])
    else:
        quantize_inputs(layer, x, stride, rows, plan.scratch)
        multiply_inputs(layer, rows, plan.scratch)
        _add_sums(plan, layer, rows, out)


@compiled
def add_feed_forward(plan: Plan, linear: int, x: int, rows: int) -> None:
    """Add a feed-forward module, two linear layers from row `linear` on, to contiguous rows."""
    first, second = linear_at(plan.constants.linears, linear), linear_at(plan.constants.linears, linear + 1)
    stride = second[VECTORS] * ROW
    if first[LIMITS] != 0 and second[LIMITS] != 0:
        quantize_inputs(first, x, stride, rows, plan.scratch)
        multiply_inputs(first, rows, plan.scratch)
        finish_as_inputs(first, second, SWOOSH_L, rows, plan.scratch)
        multiply_inputs(second, rows, plan.scratch)
        _add_sums(plan, second, rows, x)
    else:
        width = first[VECTORS] * ROW
        apply_linear(first, SWOOSH_L, x, stride, rows, plan.scratch, plan.scratch.hidden, width)
        add_linear(plan, linear + 1, plan.scratch.hidden, width, rows, x)


@compiled
def _add_sums(plan: Plan, layer: tuple[int, ...], rows: int, out: int) -> None:
    """Add the outputs of a product to contiguous rows."""
    wide, width = layer[PANELS] * PANEL_SUMS, layer[VECTORS] * ROW
    for row in range(rows):
        sums = plan.scratch.sums + row * wide
        kernels.add_sums(sums, layer[MULTIPLIER], layer[BIAS], out + row * width, layer[VECTORS])
