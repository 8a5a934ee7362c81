"""The embedding of Zipformer 2: features (L, F) to frames of 20 ms, one stream at a time.

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
from model.published.compiled.zipformer2.plan import CHANNELS, SIDE, Plan

FIRST, SECOND, THIRD = CHANNELS
THIRD_BIN = THIRD * 4
PAIR = 2  # bins whose 8 channels are one vector

_windows = make_windows(WINDOW_ROWS, WINDOW_VECTORS)
_narrow_windows = make_windows(WINDOW_ROWS, 1)
_depthwise = make_depthwise_bins(4)
_swoosh_r = kernels.floats_to_floats(kernels.swoosh_r)


@compiled
def embed(plan: Plan, window: int, cache: int, out: int) -> None:
    """Compute the frames of one stream, (frames, D); `cache`: address of its three frames of context, updated."""
    work, embedding, frames = plan.work, plan.embedding, plan.sizes.frames
    table, bins = plan.constants.linears, embedding.third_bins
    third_row, embedded = embedding.third_row, bins * THIRD
    _convolve(plan, window)
    between = SIDE * THIRD_BIN
    for frame in range(SIDE):
        int8_kernels.copy_bytes(work.third + frame * third_row + between, cache + frame * embedded * 4, embedded * 4)
        int8_kernels.copy_bytes(
            cache + frame * embedded * 4, work.third + (frames + frame) * third_row + between, embedded * 4
        )
    for frame in range(frames):
        for place in range(bins):
            first = work.third + frame * third_row + place * THIRD_BIN
            result = work.convnext + (frame * bins + place) * THIRD_BIN
            for part in range(0, THIRD, 4 * LANES):
                _depthwise(
                    first + part * 4,
                    third_row,
                    THIRD_BIN,
                    embedding.depthwise + part * 4,
                    embedding.depthwise_bias + part * 4,
                    result + part * 4,
                )
    wide, narrow, last = linear_at(table, ZERO), linear_at(table, ZERO + 1), linear_at(table, ZERO + 2)
    rows, stride = frames * bins, THIRD_BIN
    feed_forward(wide, narrow, SWOOSH_L, work.convnext, stride, rows, plan.scratch, work.convnext, stride)
    for frame in range(frames):  # around the ConvNeXt layer
        own = work.third + (SIDE + frame) * third_row + between
        kernels.add(own, work.convnext + frame * embedded * 4, embedded // LANES)
    width = last[VECTORS] * ROW
    apply_linear(last, NO_ACTIVATION, work.convnext, embedded * 4, frames, plan.scratch, out, width)
    for frame in range(frames):
        x = out + frame * width
        kernels.bias_norm(x, embedding.norm_bias, embedding.norm_scale, x, last[VECTORS])


@compiled
def _convolve(plan: Plan, window: int) -> None:
    """Compute the three convolutions into `work.third`, after the frames of context."""
    work, embedding = plan.work, plan.embedding
    frames, bins = embedding.window, embedding.bins
    features_row, first_row, second_row = embedding.features_row, embedding.first_row, embedding.second_row
    for frame in range(frames):
        int8_kernels.copy_bytes(work.bins + frame * features_row + 4, window + frame * bins * 4, bins * 4)
    frames -= 2
    for frame in range(frames):
        x, out, pairs = work.bins + frame * features_row, work.first + frame * first_row, embedding.pairs
        _rows(x, PAIR * 4, features_row, PAIR + 2, embedding.weights[0], PAIR * FIRST, pairs, out)
        _swoosh_r(out, embedding.biases[0], out, pairs * PAIR * FIRST // LANES)
    frames = (frames - 3) // 2 + 1
    for frame in range(frames):
        x, out, count = work.first + 2 * frame * first_row, work.second + frame * second_row, embedding.second_bins
        _rows(x, 2 * FIRST * 4, first_row, 3 * FIRST, embedding.weights[1], SECOND, count, out)
        _swoosh_r(out, embedding.biases[1], out, count * SECOND // LANES)
    for frame in range(frames - 2):
        x, count = work.second + frame * second_row, embedding.third_bins
        out = work.third + (SIDE + frame) * embedding.third_row + SIDE * THIRD_BIN
        _rows(x, 2 * SECOND * 4, second_row, 3 * SECOND, embedding.weights[2], THIRD, count, out)
        _swoosh_r(out, embedding.biases[2], out, count * THIRD // LANES)


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
