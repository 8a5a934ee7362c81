"""Compiled step of a cache-aware FastConformer for a batch: feature windows in, log-probabilities or frames out.

Each stream keeps, for each layer, rings of keys and values and the last frames before the convolution. Rows are
independent: only products process several at a time, and their sums are exact or in a fixed order.
"""

from __future__ import annotations

from typing import Any

from model.int8 import kernels as int8_kernels
from model.int8.vectors import LANES, ROW, Vectors, kernel
from model.machine.compiled import compiled, entry_point, float32_at, int64_at
from model.published.compiled import kernels
from model.published.compiled.fastconformer.attention import attend
from model.published.compiled.fastconformer.plan import (
    BORDER,
    FIRST_IN,
    FIRST_OUT,
    GATED,
    LAYER_COLUMNS,
    LINEARS,
    MIXED,
    MIXED_BIAS,
    MIXED_GAIN,
    SECOND_IN,
    SECOND_OUT,
    TAPS,
    TAPS_BIAS,
    Plan,
    Work,
    layer_linear,
    normalize,
)
from model.published.compiled.linears import (
    NO_ACTIVATION,
    RELU,
    SILU,
    VECTORS,
    Scratch,
    add_linear,
    apply_linear,
    feed_forward,
    linear_at,
)

IMAGE_TAPS = 3  # of the convolutions over time and frequency, in each direction


@kernel
def from_one_channel(v: Vectors, image: Any, stride: Any, weights: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute relu(convolution) of an image with one channel; `stride` bytes from row to row; weights (9, C)."""
    width = v.times(vectors, ROW)
    places = [
        v.all(v.at(image, v.times(stride, row)), 4 * column)
        for row in range(IMAGE_TAPS)
        for column in range(IMAGE_TAPS)
    ]

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        total = v.floats(bias, offset)
        for tap, place in enumerate(places):
            total += place * v.floats(weights, v.at(v.times(width, tap), offset))
        v.keep(total.most(0.0), out, offset)
        return []

    v.loop(vectors, [], body)


@kernel
def per_channel(v: Vectors, image: Any, stride: Any, weights: Any, bias: Any, out: Any, vectors: Any) -> None:
    """Compute a convolution of each channel; `stride` bytes from row to row; weights (9, C)."""
    width = v.times(vectors, ROW)

    def body(index: Any, _: Any) -> Any:
        offset = v.times(index, ROW)
        total = v.floats(bias, offset)
        for tap in range(IMAGE_TAPS * IMAGE_TAPS):
            row, column = divmod(tap, IMAGE_TAPS)
            here = v.at(v.times(stride, row), v.at(v.times(width, column), offset))
            total += v.floats(image, here) * v.floats(weights, v.at(v.times(width, tap), offset))
        v.keep(total, out, offset)
        return []

    v.loop(vectors, [], body)


@entry_point
def step(plan: Plan, work: Work, memory: tuple[int, int, int, int, int, int], count: int) -> None:
    """Advance `count` streams by one window; `memory` as in `CompiledStep.run`."""
    windows, slots, slab, stride, out, prompts = memory
    sizes = plan.sizes
    slot_of = int64_at(slots)
    for row in range(count):
        window = windows + row * sizes.window * sizes.bins * 4
        _subsample(plan, work, window, work.reduced + row * sizes.frames * sizes.fewest * sizes.channels * 4)
    _reduce(plan, work, count * sizes.frames)
    for layer in range(sizes.layers):
        _feed_forward(plan, work, layer, 0, count)
        attend(plan, work, layer, (slots, slab, stride), count)
        _convolution(plan, work, layer, (slots, slab, stride), count)
        _feed_forward(plan, work, layer, 3, count)
        normalize(plan, work, layer, 4, count, work.x)
    if sizes.prompts > 0:
        _choose_language(plan, work, count, prompts, out)
    else:
        _outputs(plan, work, count, out)
    for row in range(count):
        int64_at(slab + slot_of[row] * stride)[0] += sizes.frames


@compiled
def _subsample(plan: Plan, work: Work, window: int, out: int) -> None:
    """Compute the new frames of a window (L, F), (C, places) each, by three convolutions of stride 2."""
    sizes = plan.sizes
    channels, fewer, fewest = sizes.channels, sizes.fewer, sizes.fewest
    second_from = max(0, 2 * sizes.first - 2)  # earlier frames do not reach the new ones
    first_from = max(0, 2 * second_from - 2)
    images, width = plan.constants.images, (sizes.bins + BORDER) * 4
    for frame in range(sizes.window):
        place = work.features + (frame + 2) * width + 8
        int8_kernels.copy_bytes(place, window + frame * sizes.bins * 4, sizes.bins * 4)
    frames = sizes.window // 2 + 1
    for frame in range(first_from, frames):
        _first_image(plan, work, frame)
    frames = frames // 2 + 1
    for frame in range(second_from, frames):
        out_place = work.places + (frame - second_from) * fewer * channels * 4
        _next_image(work.image, sizes.many, images + 16, frame, fewer, channels, out_place)
    wide, rows = channels * 4, (frames - second_from) * fewer
    first = linear_at(plan.constants.subsampling, 0)
    apply_linear(first, RELU, work.places, wide, rows, work.subsampling, work.rows, wide)
    for frame in range(second_from, frames):
        place = work.image_again + ((frame + 2) * (fewer + BORDER) + 2) * wide
        int8_kernels.copy_bytes(place, work.rows + (frame - second_from) * fewer * wide, fewer * wide)
    for frame in range(sizes.frames):
        out_place = work.places + frame * fewest * wide
        _next_image(work.image_again, fewer, images + 32, sizes.first + frame, fewest, channels, out_place)
    second = linear_at(plan.constants.subsampling, 1)
    apply_linear(second, RELU, work.places, wide, sizes.frames * fewest, work.subsampling, work.rows, wide)
    for frame in range(sizes.frames):
        _channels_first(work.rows + frame * fewest * wide, fewest, channels, out + frame * fewest * wide)


@compiled
def _reduce(plan: Plan, work: Work, rows: int) -> None:
    """Project subsampled frames to the width of the layers, into `work.x`."""
    sizes, last = plan.sizes, linear_at(plan.constants.subsampling, 2)
    wide, width = sizes.fewest * sizes.channels * 4, sizes.hidden * 4
    apply_linear(last, NO_ACTIVATION, work.reduced, wide, rows, work.subsampling, work.x, width)
    for row in range(rows):
        kernels.scale_row(plan.constants.scale, work.x + row * width, sizes.hidden // LANES)


@compiled
def _first_image(plan: Plan, work: Work, frame: int) -> None:
    """Compute one frame of the first convolution, from the features."""
    part, sizes = int64_at(plan.constants.images), plan.sizes
    wide, width = sizes.channels * 4, (sizes.bins + BORDER) * 4  # bytes of a place, and of a row of features
    to = work.image + ((frame + 2) * (sizes.many + BORDER) + 2) * wide
    for column in range(sizes.many):
        place = work.features + 2 * frame * width + 2 * column * 4
        from_one_channel(place, width, part[0], part[1], to + column * wide, sizes.channels // LANES)


@compiled
def _next_image(image: int, bins: int, part: int, frame: int, columns: int, channels: int, out: int) -> None:
    """Compute one frame of a convolution of each channel, (columns, C), from an image of `bins` places a frame."""
    weights, wide = int64_at(part), channels * 4
    stride = (bins + BORDER) * wide
    for column in range(columns):
        place = image + 2 * frame * stride + 2 * column * wide
        per_channel(place, stride, weights[0], weights[1], out + column * wide, channels // LANES)


@compiled
def _channels_first(places: int, count: int, channels: int, out: int) -> None:
    """Transpose (places, C) to (C, places)."""
    rows, reduced = float32_at(places), float32_at(out)
    for column in range(count):
        for channel in range(channels):
            reduced[channel * count + column] = rows[column * channels + channel]


@compiled
def _feed_forward(plan: Plan, work: Work, layer: int, norm: int, count: int) -> None:
    """Add half of a feed-forward module to `work.x`: the first one, or that after norm 3."""
    rows, width = count * plan.sizes.frames, plan.sizes.hidden * 4
    normalize(plan, work, layer, norm, count, work.normed)
    first = layer_linear(plan, layer, FIRST_IN if norm == 0 else SECOND_IN)
    second = layer_linear(plan, layer, FIRST_OUT if norm == 0 else SECOND_OUT)
    feed_forward(first, second, SILU, work.normed, width, rows, work.scratch, work.wide, width)
    for row in range(rows):
        place = work.x + row * width
        kernels.add_scaled(work.wide + row * width, plan.constants.half, place, plan.sizes.hidden // LANES)


@compiled
def _convolution(plan: Plan, work: Work, layer: int, states: tuple[int, int, int], count: int) -> None:
    """Add the convolution module to `work.x`, and keep its last input frames."""
    sizes, fields = plan.sizes, plan.fields
    slots, slab, stride = states
    slot_of = int64_at(slots)
    table = int64_at(plan.constants.layers + layer * LAYER_COLUMNS * 8)
    rows, width, vectors = count * sizes.frames, sizes.hidden * 4, sizes.hidden // LANES
    kept = (sizes.taps - 1) * width
    normalize(plan, work, layer, 2, count, work.normed)
    linear = layer_linear(plan, layer, GATED)
    apply_linear(linear, NO_ACTIVATION, work.normed, width, rows, work.scratch, work.wide, 2 * width)
    for row in range(count):
        cache = slab + slot_of[row] * stride + fields.first_layer + layer * fields.layer + fields.convolution
        int8_kernels.copy_bytes(work.joined, cache, kept)
        for frame in range(sizes.frames):
            place = work.wide + (row * sizes.frames + frame) * 2 * width
            kernels.gated(place, place + width, work.joined + kept + frame * width, vectors)
        for frame in range(sizes.frames):
            out = work.normed + (row * sizes.frames + frame) * width
            joined = work.joined + frame * width
            kernels.depthwise(joined, width, table[TAPS], sizes.taps, table[TAPS_BIAS], out, vectors)
            if table[MIXED_GAIN] != 0:
                kernels.layer_norm(out, table[MIXED_GAIN], table[MIXED_BIAS], out, vectors)
            kernels.silu_row(out, vectors)
        int8_kernels.copy_bytes(cache, work.joined + sizes.frames * width, kept)
    add_linear(layer_linear(plan, layer, MIXED), work.normed, width, rows, work.scratch, work.x)


@compiled
def _choose_language(plan: Plan, work: Work, count: int, prompts: int, out: int) -> None:
    """Write the frames for each stream's language: two layers over the frame and a one for the language."""
    sizes, first = plan.sizes, plan.sizes.layers * LINEARS
    wide, width = (sizes.hidden + sizes.prompts) * 4, sizes.hidden * 4
    chosen = int64_at(prompts)
    for row in range(count):
        for frame in range(row * sizes.frames, (row + 1) * sizes.frames):
            place = work.wide + frame * wide
            int8_kernels.copy_bytes(place, work.x + frame * width, width)
            languages = float32_at(place + width)
            for language in range(sizes.prompts):
                languages[language] = 0.0
            languages[chosen[row]] = 1.0
    linear = linear_at(plan.constants.linears, first)
    inner, rows = linear[VECTORS] * ROW, count * sizes.frames
    apply_linear(linear, RELU, work.wide, wide, rows, work.scratch, work.prompted, inner)
    linear = linear_at(plan.constants.linears, first + 1)
    apply_linear(linear, NO_ACTIVATION, work.prompted, inner, rows, work.scratch, out, width)


@compiled
def _outputs(plan: Plan, work: Work, count: int, out: int) -> None:
    """Write log-probabilities, or the frames themselves if there is no output layer."""
    sizes = plan.sizes
    rows, width, size = count * sizes.frames, sizes.hidden * 4, sizes.outputs * 4
    if sizes.padded_outputs == 0:
        int8_kernels.copy_bytes(out, work.x, rows * width)
        return
    padded = sizes.padded_outputs * 4
    head = linear_at(plan.constants.linears, sizes.layers * LINEARS)
    apply_linear(head, NO_ACTIVATION, work.x, width, rows, work.scratch, work.wide, padded)
    for row in range(rows):
        place = work.wide + row * padded
        kernels.log_softmax(place, work.scratch.hidden, place, sizes.padded_outputs // LANES)
        int8_kernels.copy_bytes(out + row * size, place, size)


@entry_point
def project_positions(
    table: int, layer: int, rows: int, positions: int, scratch: Scratch, out: int, width: int
) -> None:
    """Project the table of positions (rows, D), `width` bytes a row, by a layer of a table of linear layers."""
    apply_linear(linear_at(table, layer), NO_ACTIVATION, positions, width, rows, scratch, out, width)
