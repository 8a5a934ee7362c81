"""Compiled step of the attention network for a batch: 16-bit samples in, log-probabilities of the new frames out.

A step computes a window: the new frames, and those after them that it reads ahead. Attention reaches the keys and
values of earlier new frames, which a ring keeps, and those of the window; only the new frames' are kept, because the
next step computes the others again with more context. All products are exact integers, and what is between them is
computed row by row, so a stream's outputs depend on its audio alone.
"""

from __future__ import annotations

from model.attention import kernels
from model.attention.plan import (
    ATTENDED,
    ATTENDING,
    BLOCK_COLUMNS,
    BLOCK_GAIN,
    BLOCK_PRODUCTS,
    BLOCK_SHIFT,
    FACTORS,
    FOUR,
    GATED,
    INNER1,
    INNER2,
    KEY_LIMITS,
    MIXED,
    QUERY_LIMITS,
    QUERY_ROWS,
    STEM,
    TAPS,
    TAPS_BIAS,
    VALUE_LIMITS,
    Plan,
    Work,
    panel_bytes,
)
from model.attention_config import HOPS
from model.int8 import kernels as int8_kernels
from model.int8.features import feature_bytes
from model.int8.product import COLUMNS, DEPTH, PANEL_SUMS, multiply
from model.int8.product_table import (
    BIAS,
    GAIN,
    LIMITS,
    MULTIPLIER,
    PANELS,
    PRODUCT_COLUMNS,
    SHIFT,
    log_probs,
    multiply_rows,
    product_at,
)
from model.int8.vectors import LANES, ROW, ROWS
from model.machine.compiled import ZERO, compiled, entry_point, float32_at, int32_at, int64_at
from model.published.compiled.kernels import add_sums, layer_norm

States = tuple[int, int, int]
"""Addresses of the slots of a block's streams (int64) and of the slab of states; bytes from one state to the next."""


@entry_point
def step(plan: Plan, work: Work, memory: tuple[int, int, int, int], count: int) -> None:
    """Advance `count` streams, block by block.

    `memory`: addresses of the inputs (count, samples) int16, of their slots (count,) int64, of the slab of states, of
    the outputs (count, new, letters + phones) float32.
    """
    inputs, slots, slab, out = memory
    sizes, fields = plan.sizes, plan.fields
    frame = (sizes.letters + sizes.phones) * 4
    for first in range(0, count, work.most):
        streams = min(work.most, count - first)
        states = (slots + first * 8, slab, fields.stride)
        _features(plan, work, states, inputs + first * sizes.samples * 2, streams)
        _stem(plan, work, streams)
        for block in range(sizes.blocks):
            products = plan.constants.products + (1 + block * BLOCK_PRODUCTS) * PRODUCT_COLUMNS * 8
            table = plan.constants.blocks + block * BLOCK_COLUMNS * 8
            wanted = sizes.new if block == sizes.blocks - 1 else sizes.window  # of the last one only the new frames
            _feed_forward(plan, work, products, INNER1, streams, sizes.window)
            _attention(plan, work, products, table, block, states, streams)
            _convolution(plan, work, products, table, block, states, streams, wanted)
            _feed_forward(plan, work, products, INNER2, streams, wanted)
            _normalize(plan, work, table, streams, wanted)
        _head(plan, work, streams, out + first * sizes.new * frame)
        for row in range(streams):
            int64_at(slab + int64_at(states[0])[row] * fields.stride + fields.position)[0] += sizes.new


@compiled
def _features(plan: Plan, work: Work, states: States, inputs: int, count: int) -> None:
    """Join the kept and the new features of each stream in `work.mel`, and keep the last ones."""
    sizes, fields = plan.sizes, plan.fields
    slots, slab, state_stride = states
    slot_of = int64_at(slots)
    joined = (sizes.overlap + sizes.samples) * 2
    stride = (HOPS * sizes.window + 1) * sizes.bands
    kept_bytes = stride - sizes.hops * sizes.bands
    for row in range(count):
        state, pcm = slab + slot_of[row] * state_stride, work.pcm + row * joined
        int8_kernels.copy_bytes(pcm, state + fields.pcm, sizes.overlap * 2)
        int8_kernels.copy_bytes(pcm + sizes.overlap * 2, inputs + row * sizes.samples * 2, sizes.samples * 2)
        int8_kernels.copy_bytes(state + fields.pcm, pcm + sizes.samples * 2, sizes.overlap * 2)
        int8_kernels.copy_bytes(work.mel + row * stride, state + fields.mel, kept_bytes)
    limits = product_at(plan.constants.products, STEM)[LIMITS]
    scratch = (work.frames, work.power, work.band)
    feature_bytes(
        plan.constants.features, limits, scratch, (work.pcm, joined), sizes.hops, count, (work.mel + kept_bytes, stride)
    )
    for row in range(count):
        state = slab + slot_of[row] * state_stride
        int8_kernels.copy_bytes(state + fields.mel, work.mel + row * stride + sizes.hops * sizes.bands, kept_bytes)


@compiled
def _stem(plan: Plan, work: Work, count: int) -> None:
    """Compute the first convolution of all windows, into `work.x`."""
    sizes, stem = plan.sizes, product_at(plan.constants.products, STEM)
    rows = count * sizes.window
    multiply_rows(stem, work.mel, plan.constants.stem_offsets, rows, work.sums)
    for row in range(rows):
        sums = work.sums + row * stem[PANELS] * PANEL_SUMS
        kernels.stem_floats(sums, stem[MULTIPLIER], stem[BIAS], work.x + row * sizes.width * 4, sizes.width // LANES)


@compiled
def _x(plan: Plan, work: Work, row: int, frames: int, apart: int) -> range:
    """Addresses in `work.x` of the first `frames` frames of a window, of one in `apart` frames."""
    frame, first = plan.sizes.width * 4, work.x + row * plan.sizes.window * plan.sizes.width * 4
    return range(first, first + frames * frame, apart * frame)


@compiled
def _norm(plan: Plan, work: Work, product: tuple[int, ...], count: int, frames: int) -> None:
    """Quantize the layer norm of the first `frames` frames of each window for a product, into `work.bytes`."""
    width, out = plan.sizes.width, work.bytes
    gain, shift, limits = product[GAIN], product[SHIFT], product[LIMITS]
    for row in range(count):
        for x in _x(plan, work, row, frames, ROWS):
            int8_kernels.norm_rows(x, width * 4, gain, shift, limits, out, width, width // LANES)
            out += ROWS * width


@compiled
def _add(plan: Plan, work: Work, product: tuple[int, ...], count: int, frames: int) -> None:
    """Add a product's outputs to the first `frames` frames of each window."""
    sizes, sums = plan.sizes, work.sums
    for row in range(count):
        for x in _x(plan, work, row, frames, 1):
            add_sums(sums, product[MULTIPLIER], product[BIAS], x, sizes.width // LANES)
            sums += product[PANELS] * PANEL_SUMS


@compiled
def _feed_forward(plan: Plan, work: Work, products: int, first: int, count: int, frames: int) -> None:
    """Add a feed-forward layer to the first `frames` frames of each window; its half is in the outer scales."""
    sizes, rows = plan.sizes, count * frames
    inner, outer = product_at(products, first), product_at(products, first + 1)
    _norm(plan, work, inner, count, frames)
    multiply_rows(inner, work.bytes, plan.constants.row_offsets, rows, work.sums)
    wide, multiplier, bias, limits = inner[PANELS] * PANEL_SUMS, inner[MULTIPLIER], inner[BIAS], outer[LIMITS]
    for row in range(0, rows, ROWS):
        sums, out = work.sums + row * wide, work.bytes + row * sizes.inner
        int8_kernels.silu_rows(sums, wide, multiplier, bias, limits, out, sizes.inner, sizes.inner // LANES)
    multiply_rows(outer, work.bytes, plan.constants.inner_offsets, rows, work.sums)
    _add(plan, work, outer, count, frames)


@compiled
def _attention(plan: Plan, work: Work, products: int, table: int, block: int, states: States, count: int) -> None:
    """Add attention over the kept and the window's frames."""
    sizes, width, vectors = plan.sizes, plan.sizes.width, plan.sizes.width // LANES
    slots, slab, stride = states
    slot_of, at = int64_at(slots), int64_at(table)
    rows = count * sizes.window
    attending, attended = product_at(products, ATTENDING), product_at(products, ATTENDED)
    _norm(plan, work, attending, count, sizes.window)
    multiply_rows(attending, work.bytes, plan.constants.row_offsets, rows, work.sums)
    wide, limits = attending[PANELS] * PANEL_SUMS, (at[QUERY_LIMITS], at[KEY_LIMITS], at[VALUE_LIMITS])
    for part, out in enumerate((work.queries, work.keys, work.values)):
        skipped = part * width * 4
        multiplier, bias = attending[MULTIPLIER] + skipped, attending[BIAS] + skipped
        for row in range(rows):
            sums, to = work.sums + row * wide + skipped, out + row * width
            kernels.plain_bytes(sums, multiplier, bias, limits[part], to, vectors)
    for row in range(count):
        state = slab + slot_of[row] * stride
        position = int64_at(state + plan.fields.position)[0]
        cache = state + plan.fields.first_block + block * plan.fields.block
        _keep(plan, work, cache, position, row * sizes.window)
        _hide(plan, work, position)
        for head in range(sizes.heads):
            _attend(plan, work, cache, head, at[FACTORS] + head * 4, row * sizes.window)
    for row in range(rows):
        mixed, out = work.mixed + row * (width + LANES) * 4, work.bytes + row * width
        int8_kernels.float_bytes(mixed, attended[LIMITS], out, vectors)
    multiply_rows(attended, work.bytes, plan.constants.row_offsets, rows, work.sums)
    _add(plan, work, attended, count, sizes.window)


@compiled
def _keep(plan: Plan, work: Work, cache: int, position: int, first: int) -> None:
    """Write the keys and values of a window, from row `first`, into the columns of a block's cache.

    Frames before the audio are left out; `position` and all sizes are multiples of four frames.
    """
    sizes, width = plan.sizes, plan.sizes.width
    deep = width // sizes.heads
    groups, panel = deep // DEPTH, panel_bytes(deep)
    panels = sizes.columns // COLUMNS
    for frame in range(sizes.window):
        number = position + frame
        if number < 0:
            continue
        column = number % sizes.ring if frame < sizes.new else sizes.ring + frame - sizes.new
        words = int32_at(work.keys + (first + frame) * width)
        to = int32_at(cache + (column // COLUMNS) * panel + column % COLUMNS * DEPTH)
        for head in range(sizes.heads):
            word = head * panels * panel // DEPTH
            for group in range(groups):
                to[word + group * COLUMNS] = words[head * groups + group]
        if frame % FOUR == 0:
            group_at = cache + plan.fields.values + column // FOUR * FOUR * width
            kernels.interleaved_frames(work.values + (first + frame) * width, width, group_at, width // LANES)


@compiled
def _hide(plan: Plan, work: Work, position: int) -> None:
    """Set `work.mask`, which is added to the scores of the columns: it hides those without a frame."""
    sizes = plan.sizes
    masks = float32_at(plan.constants.masks)
    mask = float32_at(work.mask)
    filled = min(max(position + sizes.new, ZERO), sizes.ring)
    for column in range(sizes.columns):
        mask[column] = masks[0] if column < filled else masks[1]
    for frame in range(sizes.new, sizes.window):
        if position + frame >= 0:
            mask[sizes.ring + frame - sizes.new] = masks[0]


@compiled
def _attend(plan: Plan, work: Work, cache: int, head: int, factor: int, first: int) -> None:
    """Write one head's averages of values into `work.mixed`, for the rows of a window from `first`."""
    sizes, width, deep = plan.sizes, plan.sizes.width, plan.sizes.width // plan.sizes.heads
    panel, value_panels = panel_bytes(deep), (deep + COLUMNS - 1) // COLUMNS
    offsets, own, no_sums = plan.constants.row_offsets, plan.constants.probability_offsets, plan.constants.no_sums
    start = stop = ZERO
    for begin in range(0, sizes.window, QUERY_ROWS):
        rows = min(QUERY_ROWS, sizes.window - begin)
        reached = (begin + rows + sizes.reach + COLUMNS - 1) // COLUMNS * COLUMNS
        before, start = start, max(begin - sizes.reach, ZERO) // COLUMNS * COLUMNS
        after, stop = stop, min(reached, sizes.columns)
        columns, panels, groups = stop - start, (stop - start) // COLUMNS, (stop - start) // FOUR
        keys = cache + (head * (sizes.columns // COLUMNS) + start // COLUMNS) * panel
        mask, wide = work.mask + start * 4, panels * PANEL_SUMS
        zeros = work.scores + QUERY_ROWS * wide  # the sums of a query of zero points
        if start != before or stop != after:
            values = cache + plan.fields.values + start * width + head * deep * FOUR
            _pack_values(values, width * FOUR, groups, deep, work.panels)
            multiply(plan.constants.zero_points, offsets, 1, keys, deep // DEPTH, panels, no_sums, zeros)
        queries = work.queries + (first + begin) * width + head * deep
        multiply(queries, offsets, rows, keys, deep // DEPTH, panels, no_sums, work.scores)
        for row in range(0, rows, ROWS):
            scores, apart, total = work.scores + row * wide, sizes.columns, work.totals + row * ROW
            out, rows_at, size, vectors = work.probabilities + row * apart, work.rows, columns * 4, columns // LANES
            kernels.probability_bytes(scores, wide, zeros, factor, mask, rows_at, size, out, apart, total, ROW, vectors)
        sums = work.average_sums
        multiply(work.probabilities, own, rows, work.panels, groups, value_panels, no_sums, sums)
        for row in range(rows):
            out = work.mixed + ((first + begin + row) * (width + LANES) + head * deep) * 4
            total, vectors = work.totals + row * ROW, (deep + LANES - 1) // LANES
            kernels.averages(sums + row * value_panels * PANEL_SUMS, total, out, vectors)


@compiled
def _pack_values(values: int, stride: int, groups: int, deep: int, out: int) -> None:
    """Copy a head's values, groups of four frames `stride` bytes apart, into panels of 32 columns."""
    panel = groups * COLUMNS * FOUR
    for begin in range(0, deep, COLUMNS):
        size = min(deep - begin, COLUMNS) * FOUR
        for group in range(groups):
            to = out + begin // COLUMNS * panel + group * COLUMNS * FOUR
            int8_kernels.copy_bytes(to, values + group * stride + begin * FOUR, size)


@compiled
def _convolution(
    plan: Plan, work: Work, products: int, table: int, block: int, states: States, count: int, wanted: int
) -> None:
    """Add the gated convolution to the first `wanted` frames of each window; frames after it count as zeros."""
    sizes, fields, width, vectors = plan.sizes, plan.fields, plan.sizes.width, plan.sizes.width // LANES
    slots, slab, stride = states
    slot_of, at = int64_at(slots), int64_at(table)
    rows, apart, before = count * sizes.window, width * 4, sizes.taps // 2
    gated, mixed = product_at(products, GATED), product_at(products, MIXED)
    wide = gated[PANELS] * PANEL_SUMS
    _norm(plan, work, gated, count, sizes.window)
    multiply_rows(gated, work.bytes, plan.constants.row_offsets, rows, work.sums)
    for row in range(count):
        state = slab + slot_of[row] * stride
        position = int64_at(state + fields.position)[0]
        cache = state + fields.first_block + block * fields.block + fields.convolution
        kernels.halves_to_floats(cache, work.joined, before * vectors)
        for frame in range(0, sizes.window, ROWS):
            joined = work.joined + (before + frame) * apart
            if position + frame < 0:
                int8_kernels.copy_bytes(joined, plan.constants.no_sums, ROWS * apart)
            else:
                sums = work.sums + (row * sizes.window + frame) * wide
                kernels.gated(sums, wide, gated[MULTIPLIER], gated[BIAS], joined, apart, vectors)
        for vector in range(vectors):  # all frames of one, so that its weights stay in the first-level cache
            taps, taps_bias, limits = at[TAPS] + vector * ROW, at[TAPS_BIAS] + vector * ROW, mixed[LIMITS]
            for frame in range(0, wanted, ROWS):
                frames = work.joined + frame * apart + vector * ROW
                out = work.bytes + (row * wanted + frame) * width + vector * LANES
                kernels.convolved_bytes(frames, apart, taps, taps_bias, limits, out, width, apart, sizes.taps)
        int8_kernels.float_halves(work.joined + sizes.new * apart, cache, before * vectors)
    multiply_rows(mixed, work.bytes, plan.constants.row_offsets, count * wanted, work.sums)
    _add(plan, work, mixed, count, wanted)


@compiled
def _normalize(plan: Plan, work: Work, table: int, count: int, frames: int) -> None:
    """Replace the first `frames` frames of each window by the block's layer norm."""
    at = int64_at(table)
    for row in range(count):
        for x in _x(plan, work, row, frames, 1):
            layer_norm(x, at[BLOCK_GAIN], at[BLOCK_SHIFT], x, plan.sizes.width // LANES)


@compiled
def _head(plan: Plan, work: Work, count: int, out: int) -> None:
    """Compute the log-probabilities of the new frames; columns of phones start at a vector after those of letters."""
    sizes, width = plan.sizes, plan.sizes.width
    head = product_at(plan.constants.products, 1 + sizes.blocks * BLOCK_PRODUCTS)
    rows, quantized = count * sizes.new, work.bytes
    for row in range(count):
        for x in _x(plan, work, row, sizes.new, 1):
            int8_kernels.float_bytes(x, head[LIMITS], quantized, width // LANES)
            quantized += width
    multiply_rows(head, work.bytes, plan.constants.row_offsets, rows, work.sums)
    log_probs(head, rows, work.sums, sizes.letters, sizes.phones, work.outputs, out)
