"""Compiled step of Zipformer 2 for a block of streams: features in, log-probabilities or encoder outputs out.

Frames of all streams are rows (streams, T, D), each stack's at its own rate. Products process all rows at once, the
rest one stream at a time. Equivalent of `Zipformer2.streaming_forward` in icefall.
"""

from __future__ import annotations

from model.int8 import kernels as int8_kernels
from model.int8.features import clear_rows
from model.int8.vectors import LANES, ROW
from model.machine.compiled import compiled, entry_point, int64_at
from model.published.compiled import kernels
from model.published.compiled.linears import NO_ACTIVATION, VECTORS, apply_linear, linear_at
from model.published.compiled.zipformer2.attention import attend, attend_nonlinearly, ring_of, weights_of
from model.published.compiled.zipformer2.embedding import embed
from model.published.compiled.zipformer2.kernels import make_chunk_convolution, weighted_sum
from model.published.compiled.zipformer2.plan import (
    FIRST_LINEAR,
    LAYER_LINEARS,
    LayerPlan,
    Plan,
    StackPlan,
    States,
    add_feed_forward,
    add_layer,
    layer_at,
    stack_at,
    state_of,
    steps_of,
)

_convolution = make_chunk_convolution(4)
_narrow_convolution = make_chunk_convolution(1)


@entry_point
def step(plan: Plan, memory: tuple[int, int, int, int, int, int], count: int) -> None:
    """Step `count` streams; `memory`: see `CompiledStep.run`."""
    windows, slots, slab, stride, results, _ = memory
    states = (slots, slab, stride)
    sizes, work = plan.sizes, plan.work
    width = stack_at(plan.constants.stacks, 0).width
    for row in range(count):
        window = windows + row * plan.embedding.window * plan.embedding.bins * 4
        out = work.embedded + row * sizes.frames * width * 4
        embed(plan, window, state_of(states, row) + sizes.embed_cache, out)
    x, x_row = work.embedded, width * 4
    for number in range(sizes.stacks):
        stack = stack_at(plan.constants.stacks, number)
        _enter(plan, stack, x, width, x_row, count)
        for layer in range(stack.layers):
            _layer(plan, stack, states, stack.first_layer + layer, count)
        _leave(plan, stack, count)
        x, width, x_row = work.outputs + stack.output * 4, stack.width, sizes.row * 4
    for row in range(count):
        int64_at(state_of(states, row))[0] += 1
    _finish(plan, count, results)


@compiled
def _enter(plan: Plan, stack: StackPlan, x: int, width: int, x_row: int, count: int) -> None:
    """Copy frames with the channels of a stack to `work.entered`, and those at its rate to `work.x`."""
    work = plan.work
    kept, row_bytes = min(width, stack.width), stack.width * 4
    for row in range(count * plan.sizes.frames):
        out = work.entered + row * row_bytes
        int8_kernels.copy_bytes(out, x + row * x_row, kept * 4)
        if stack.width > kept:
            clear_rows(out + kept * 4, (stack.width - kept) // LANES)
    if stack.factor == 1:
        int8_kernels.copy_bytes(work.x, work.entered, count * stack.frames * row_bytes)
    else:
        for row in range(count * stack.frames):
            first = work.entered + row * stack.factor * row_bytes
            out = work.x + row * row_bytes
            weighted_sum(first, row_bytes, stack.downsampling, stack.factor, out, stack.width // LANES)


@compiled
def _leave(plan: Plan, stack: StackPlan, count: int) -> None:
    """Write the output of a stack: its frames repeated and combined with those that entered, or as they are."""
    work, row_bytes = plan.work, stack.width * 4
    for row in range(count * plan.sizes.frames):
        out = work.outputs + (row * plan.sizes.row + stack.output) * 4
        int8_kernels.copy_bytes(out, work.x + (row // stack.factor) * row_bytes, row_bytes)
        if stack.factor > 1:
            kernels.bypass(work.entered + row * row_bytes, stack.combination, out, stack.width // LANES)


@compiled
def _layer(plan: Plan, stack: StackPlan, states: States, index: int, count: int) -> None:
    """Apply a layer to `work.x`."""
    work, layer = plan.work, layer_at(plan.constants.layers, index)
    x, rows, linear = work.x, count * stack.frames, FIRST_LINEAR + LAYER_LINEARS * index
    vectors, row_bytes = stack.width // LANES, stack.width * 4
    int8_kernels.copy_bytes(work.before, x, rows * row_bytes)
    attention = linear_at(plan.constants.linears, linear)
    apply_linear(attention, NO_ACTIVATION, x, row_bytes, rows, plan.scratch, work.projected, attention[VECTORS] * ROW)
    for row in range(count):
        state = state_of(states, row)
        weights_of(plan, stack, layer, state, ring_of(stack, steps_of(state)), row)
    add_feed_forward(plan, linear + 1, x, rows)
    attend_nonlinearly(plan, stack, x, states, layer.nonlinear, linear + 3, count)
    attend(plan, stack, x, states, layer.values[0], linear + 5, count)
    _convolve(plan, stack, layer, states, 0, linear + 7, count)
    add_feed_forward(plan, linear + 9, x, rows)
    for row in range(rows):
        kernels.bypass(work.before + row * row_bytes, layer.middle, x + row * row_bytes, vectors)
    attend(plan, stack, x, states, layer.values[1], linear + 11, count)
    _convolve(plan, stack, layer, states, 1, linear + 13, count)
    add_feed_forward(plan, linear + 15, x, rows)
    for row in range(rows):
        place = x + row * row_bytes
        kernels.bias_norm(place, layer.norm_bias, layer.norm_scale, place, vectors)
        kernels.bypass(work.before + row * row_bytes, layer.end, place, vectors)


@compiled
def _convolve(
    plan: Plan, stack: StackPlan, layer: LayerPlan, states: States, number: int, linear: int, count: int
) -> None:
    """Add a convolution module to `work.x`: a gated linear unit, the convolutions, SwooshR, a linear layer."""
    work = plan.work
    rows, row_bytes, vectors = count * stack.frames, stack.width * 4, stack.width // LANES
    first = linear_at(plan.constants.linears, linear)
    apply_linear(first, NO_ACTIVATION, work.x, row_bytes, rows, plan.scratch, work.projected, 2 * row_bytes)
    half = stack.taps // 2
    for row in range(count):
        cache = state_of(states, row) + layer.convolved[number]
        new = work.joined + half * row_bytes
        int8_kernels.copy_bytes(work.joined, cache, half * row_bytes)
        for frame in range(stack.frames):
            x = work.projected + (row * stack.frames + frame) * 2 * row_bytes
            kernels.gated(x, x + row_bytes, new + frame * row_bytes, vectors)
        int8_kernels.copy_bytes(cache, work.joined + stack.frames * row_bytes, half * row_bytes)
        for frame in range(stack.frames):
            out = work.mixed + (row * stack.frames + frame) * row_bytes
            _convolve_frame(stack, layer, number, work.joined, frame, out)
    add_layer(plan, linear + 1, work.mixed, row_bytes, rows, work.x)


@compiled
def _convolve_frame(stack: StackPlan, layer: LayerPlan, number: int, joined: int, frame: int, out: int) -> None:
    """Compute both convolutions of one frame, and SwooshR."""
    half, row_bytes, vectors = stack.taps // 2, stack.width * 4, stack.width // LANES
    begin, end = max(frame - half, 0), min(frame + half + 1, stack.frames)
    causal_frames = joined + frame * row_bytes
    chunk_frames = joined + (half + begin) * row_bytes
    chunk = layer.chunk[number] + (begin - frame + half) * row_bytes
    done = 0
    while vectors - done >= 4:
        skip = done * ROW
        _convolution(
            row_bytes, causal_frames + skip, layer.causal[number] + skip, half + 1,
            chunk_frames + skip, chunk + skip, end - begin,
            layer.causal_bias[number] + skip, layer.chunk_bias[number] + skip,
            layer.edge[number] + frame * row_bytes + skip, out + skip,
        )  # fmt: skip
        done += 4
    while vectors - done >= 1:
        skip = done * ROW
        _narrow_convolution(
            row_bytes, causal_frames + skip, layer.causal[number] + skip, half + 1,
            chunk_frames + skip, chunk + skip, end - begin,
            layer.causal_bias[number] + skip, layer.chunk_bias[number] + skip,
            layer.edge[number] + frame * row_bytes + skip, out + skip,
        )  # fmt: skip
        done += 1


@compiled
def _finish(plan: Plan, count: int, results: int) -> None:
    """Compute the results: pairs of frames with all channels, the head, and log-softmax if there is one."""
    sizes, work, constants = plan.sizes, plan.work, plan.constants
    pieces = int64_at(constants.pieces)
    rows = count * sizes.frames // 2
    for row in range(rows):
        for piece in range(sizes.pieces):
            source = work.outputs + (2 * row * sizes.row + pieces[3 * piece]) * 4
            out = work.final + (row * sizes.wide + pieces[3 * piece + 1]) * 4
            weighted_sum(source, sizes.row * 4, constants.downsampling, 2, out, pieces[3 * piece + 2])
    head = linear_at(constants.linears, sizes.head)
    row_bytes = head[VECTORS] * ROW
    apply_linear(head, NO_ACTIVATION, work.final, sizes.wide * 4, rows, plan.scratch, work.projected, row_bytes)
    for row in range(rows):
        place = work.projected + row * row_bytes
        if sizes.log_probs:
            kernels.log_softmax(place, work.spare, place, head[VECTORS])
        int8_kernels.copy_bytes(results + row * sizes.symbols * 4, place, sizes.symbols * 4)
