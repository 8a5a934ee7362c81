"""Linear layers of Zipformer 2 whose outputs are added to frames, and access to the states of a block's streams."""

from __future__ import annotations

from model.int8.vectors import ROW
from model.machine.compiled import compiled, int64_at
from model.published.compiled.linears import (
    LIMITS,
    SWOOSH_L,
    VECTORS,
    add_linear,
    add_sums,
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
def add_layer(plan: Plan, linear: int, x: int, stride: int, rows: int, out: int) -> None:
    """Add a linear layer of rows of `x` to contiguous rows."""
    add_linear(linear_at(plan.constants.linears, linear), x, stride, rows, plan.scratch, out)


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
        add_sums(second, rows, plan.scratch, x)
    else:
        width = first[VECTORS] * ROW
        apply_linear(first, SWOOSH_L, x, stride, rows, plan.scratch, plan.scratch.hidden, width)
        add_linear(second, plan.scratch.hidden, width, rows, plan.scratch, x)
