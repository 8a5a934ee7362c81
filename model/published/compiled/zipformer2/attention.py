"""Attention of Zipformer 2: weights once per layer, shared by both self-attentions and the nonlinear attention.

Keys and values are rings of as many frames as a query attends to: a step replaces the oldest ones. The first slots of
a new stream's rings are those with frames, so a mask is a number of slots. Keys are stored by channel, (channels,
slots), so that scores are a product with rows of slots.
"""

from __future__ import annotations

from model.int8 import kernels as int8_kernels
from model.int8.vectors import LANES
from model.machine.compiled import compiled, float32_at
from model.published.compiled import kernels
from model.published.compiled.float_product import float_product
from model.published.compiled.linears import NO_ACTIVATION, apply_linear, linear_at
from model.published.compiled.zipformer2.kernels import masked_softmax
from model.published.compiled.zipformer2.plan import (
    LayerPlan,
    Plan,
    StackPlan,
    States,
    add_layer,
    state_of,
    steps_of,
)

Ring = tuple[int, int, int]
"""Slots that a step's frames fill, from the first to before the second; number of slots with frames after that."""


@compiled
def ring_of(stack: StackPlan, steps: int) -> Ring:
    """Return where the frames of a step are put, after `steps` steps."""
    chunks = stack.slots // stack.frames
    chunk = steps % chunks
    return chunk * stack.frames, (chunk + 1) * stack.frames, min(steps + 1, chunks) * stack.frames


@compiled
def weights_of(plan: Plan, stack: StackPlan, layer: LayerPlan, state: int, ring: Ring, row: int) -> None:
    """Compute attention weights of a stream, (heads, T, keys), from its queries, keys and position queries.

    They are in `work.projected`, `row` is the stream's place in the block.
    """
    work = plan.work
    frames, wide = stack.frames, stack.heads * stack.query
    stride = (2 * wide + stack.heads * stack.place) * 4
    x = work.projected + row * frames * stride
    keys, key_row = state + layer.key, stack.keys * 4
    first = ring[0]
    for frame in range(frames):
        new = float32_at(x + frame * stride + wide * 4)
        for channel in range(wide):
            float32_at(keys + channel * key_row)[first + frame] = new[channel]
    scores = work.attention + row * stack.heads * frames * key_row
    vectors = stack.keys // LANES
    for head in range(stack.heads):
        query, out = x + head * stack.query * 4, scores + head * frames * key_row
        key = keys + head * stack.query * key_row
        float_product(query, stride, frames, key, key_row, stack.query, vectors, out, key_row)
        place = x + (2 * wide + head * stack.place) * 4
        table = layer.positions + head * stack.place * stack.relative * 4
        relative_row = stack.relative * 4
        float_product(
            place,
            stride,
            frames,
            table,
            relative_row,
            stack.place,
            stack.relative // LANES,
            work.relative,
            relative_row,
        )
        for frame in range(frames):
            _normalize(plan, stack, ring, frame, out + frame * key_row)


@compiled
def _normalize(plan: Plan, stack: StackPlan, ring: Ring, frame: int, scores: int) -> None:
    """Add the scores of relative positions to those of a query, and compute softmax over the slots with frames."""
    work = plan.work
    _, last, filled = ring
    oldest = work.relative + (frame * stack.relative + stack.frames - 1 - frame) * 4
    int8_kernels.copy_bytes(work.turned, oldest + (stack.slots - last) * 4, last * 4)
    int8_kernels.copy_bytes(work.turned + last * 4, oldest, (stack.slots - last) * 4)
    masked_softmax(scores, work.turned, plan.constants.mask - filled * 4, stack.keys // LANES)


@compiled
def attend(plan: Plan, stack: StackPlan, x: int, states: States, cache: int, linears: int, count: int) -> None:
    """Add a self-attention to the rows of `x`; `linears`: row of its first linear layer; `cache`: of the values."""
    work = plan.work
    frames, rows, width = stack.frames, count * stack.frames, stack.heads * stack.value
    first = linear_at(plan.constants.linears, linears)
    apply_linear(first, NO_ACTIVATION, x, stack.width * 4, rows, plan.scratch, work.projected, width * 4)
    key_row, mixed_row = stack.keys * 4, stack.value_row * 4
    vectors = (stack.value + LANES - 1) // LANES
    for row in range(count):
        state = state_of(states, row)
        begin, _, filled = ring_of(stack, steps_of(state))
        values = state + cache
        new = work.projected + row * frames * width * 4
        int8_kernels.copy_bytes(values + begin * width * 4, new, frames * width * 4)
        weights = work.attention + row * stack.heads * frames * key_row
        out = work.mixed + row * frames * mixed_row
        for head in range(stack.heads):  # in this order: a head's spare columns are those of the next one
            float_product(
                weights + head * frames * key_row,
                key_row,
                frames,
                values + head * stack.value * 4,
                width * 4,
                filled,
                vectors,
                out + head * stack.value * 4,
                mixed_row,
            )
    add_layer(plan, linears + 1, work.mixed, mixed_row, rows, x)


@compiled
def attend_nonlinearly(
    plan: Plan, stack: StackPlan, x: int, states: States, cache: int, linears: int, count: int
) -> None:
    """Add the nonlinear attention to the rows of `x`: frames gated by tanh, mixed by the first head's weights."""
    work = plan.work
    frames, inner, rows = stack.frames, stack.inner, count * stack.frames
    first = linear_at(plan.constants.linears, linears)
    stride, vectors = 3 * inner * 4, inner // LANES
    apply_linear(first, NO_ACTIVATION, x, stack.width * 4, rows, plan.scratch, work.projected, stride)
    key_row = stack.keys * 4
    for row in range(count):
        state = state_of(states, row)
        begin, _, filled = ring_of(stack, steps_of(state))
        values, out = state + cache, work.mixed + row * frames * inner * 4
        new = work.projected + row * frames * stride
        for frame in range(frames):
            gate = new + frame * stride
            kernels.gated_by_tanh(gate + inner * 4, gate, values + (begin + frame) * inner * 4, vectors)
        weights = work.attention + row * stack.heads * frames * key_row
        float_product(weights, key_row, frames, values, inner * 4, filled, vectors, out, inner * 4)
        for frame in range(frames):
            after = new + frame * stride + 2 * inner * 4
            kernels.multiply_rows(after, out + frame * inner * 4, vectors)
    add_layer(plan, linears + 1, work.mixed, inner * 4, rows, x)
