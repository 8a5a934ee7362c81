"""The embedding of Zipformer 2: features (L, 80) to frames of 20 ms, one stream at a time.

Three convolutions, the ConvNeXt layer with its three frames of context, a linear layer, a norm. Values are laid out
as (frames, bins, channels), so that the inputs of a tap and the outputs of a position are contiguous.
"""

from __future__ import annotations

from model.int8 import kernels as int8_kernels
from model.int8.vectors import LANES, ROW
from model.machine.compiled import ZERO, compiled
from model.published.compiled import kernels
from model.published.compiled.linears import NO_ACTIVATION, SWOOSH_L, VECTORS, apply_linear, feed_forward, linear_at
from model.published.compiled.zipformer2.kernels import (
    WINDOW_ROWS,
    WINDOW_VECTORS,
    make_depthwise_bins,
    make_windows,
)
from model.published.compiled.zipformer2.plan import BINS, CHANNELS, EMBED_BINS, SIDE, Plan

FIRST, SECOND, THIRD = CHANNELS
FIRST_ROW = BINS * FIRST * 4  # bytes of a frame after each convolution
SECOND_BINS = (BINS - 3) // 2 + 1
SECOND_ROW = SECOND_BINS * SECOND * 4
THIRD_BIN = THIRD * 4
THIRD_ROW = (EMBED_BINS + 2 * SIDE) * THIRD_BIN  # with bins of zeros on both sides
EMBEDDED = EMBED_BINS * THIRD  # inputs of the linear layer
BINS_ROW = 96 * 4  # bytes of a frame of features: 80 between zeros, then memory to spare
PAIR = 2  # bins whose 8 channels are one vector

_windows = make_windows(WINDOW_ROWS, WINDOW_VECTORS)
_narrow_windows = make_windows(WINDOW_ROWS, 1)
_depthwise = make_depthwise_bins(4)
_swoosh_r = kernels.floats_to_floats(kernels.swoosh_r)


@compiled
def embed(plan: Plan, window: int, cache: int, out: int) -> None:
    """Compute the frames of one stream, (frames, D); `cache`: address of its three frames of context, updated."""
    work, embedding, frames = plan.work, plan.embedding, plan.sizes.frames
    table = plan.constants.linears
    _convolve(plan, window)
    between = SIDE * THIRD_BIN
    for frame in range(SIDE):
        int8_kernels.copy_bytes(
            work.third + frame * THIRD_ROW + between, cache + frame * EMBED_BINS * THIRD_BIN, EMBED_BINS * THIRD_BIN
        )
        int8_kernels.copy_bytes(
            cache + frame * EMBED_BINS * THIRD_BIN,
            work.third + (frames + frame) * THIRD_ROW + between,
            EMBED_BINS * THIRD_BIN,
        )
    for frame in range(frames):
        for place in range(EMBED_BINS):
            first = work.third + frame * THIRD_ROW + place * THIRD_BIN
            result = work.convnext + (frame * EMBED_BINS + place) * THIRD_BIN
            for part in range(0, THIRD, 4 * LANES):
                _depthwise(
                    first + part * 4,
                    THIRD_ROW,
                    THIRD_BIN,
                    embedding.depthwise + part * 4,
                    embedding.depthwise_bias + part * 4,
                    result + part * 4,
                )
    wide, narrow, last = linear_at(table, ZERO), linear_at(table, ZERO + 1), linear_at(table, ZERO + 2)
    rows, stride = frames * EMBED_BINS, THIRD_BIN
    feed_forward(wide, narrow, SWOOSH_L, work.convnext, stride, rows, plan.scratch, work.convnext, stride)
    for frame in range(frames):  # around the ConvNeXt layer
        own = work.third + (SIDE + frame) * THIRD_ROW + between
        kernels.add(own, work.convnext + frame * EMBEDDED * 4, EMBEDDED // LANES)
    width = last[VECTORS] * ROW
    apply_linear(last, NO_ACTIVATION, work.convnext, EMBEDDED * 4, frames, plan.scratch, out, width)
    for frame in range(frames):
        x = out + frame * width
        kernels.bias_norm(x, embedding.norm_bias, embedding.norm_scale, x, last[VECTORS])


@compiled
def _convolve(plan: Plan, window: int) -> None:
    """Compute the three convolutions into `work.third`, after the frames of context."""
    work, embedding = plan.work, plan.embedding
    frames = embedding.window
    for frame in range(frames):
        int8_kernels.copy_bytes(work.bins + frame * BINS_ROW + 4, window + frame * BINS * 4, BINS * 4)
    frames -= 2
    for frame in range(frames):
        x, out = work.bins + frame * BINS_ROW, work.first + frame * FIRST_ROW
        _rows(x, PAIR * 4, BINS_ROW, PAIR + 2, embedding.weights[0], PAIR * FIRST, BINS // PAIR, out)
        _swoosh_r(out, embedding.biases[0], out, BINS * FIRST // LANES)
    frames = (frames - 3) // 2 + 1
    for frame in range(frames):
        x, out = work.first + 2 * frame * FIRST_ROW, work.second + frame * SECOND_ROW
        _rows(x, 2 * FIRST * 4, FIRST_ROW, 3 * FIRST, embedding.weights[1], SECOND, SECOND_BINS, out)
        _swoosh_r(out, embedding.biases[1], out, SECOND_BINS * SECOND // LANES)
    for frame in range(frames - 2):
        x = work.second + frame * SECOND_ROW
        out = work.third + (SIDE + frame) * THIRD_ROW + SIDE * THIRD_BIN
        _rows(x, 2 * SECOND * 4, SECOND_ROW, 3 * SECOND, embedding.weights[2], THIRD, EMBED_BINS, out)
        _swoosh_r(out, embedding.biases[2], out, EMBED_BINS * THIRD // LANES)


@compiled
def _rows(x: int, stride: int, tap_stride: int, depth: int, weights: int, width: int, rows: int, out: int) -> None:
    """Compute the outputs (rows, width) of a frame without the bias; the last tile may repeat rows."""
    row_bytes = width * 4
    row = ZERO
    while row < rows:
        first = min(row, rows - WINDOW_ROWS)
        a, c = x + first * stride, out + first * row_bytes
        vectors, done = width // LANES, ZERO
        while vectors - done >= WINDOW_VECTORS:
            w = weights + done * ROW
            _windows(a, stride, 3, tap_stride, depth, w, row_bytes, c + done * ROW, row_bytes)
            done += WINDOW_VECTORS
        while vectors - done >= 1:
            w = weights + done * ROW
            _narrow_windows(a, stride, 3, tap_stride, depth, w, row_bytes, c + done * ROW, row_bytes)
            done += 1
        row += WINDOW_ROWS
