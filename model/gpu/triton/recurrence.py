"""Recurrence of a GRU layer with one launch per frame: the product with the recurrent weights, then the gates.

The program that finishes a tile of units last has all three gates of these units, so it also computes their state.
Segments, order of sums and formulas are those of the persistent kernel, so both are bit-identical.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.gpu.segments import STEP, padded_length, recurrent_segments
from model.gpu.triton.arithmetic import (
    arrives_last,
    begin,
    prefetch_part,
    segment_first,
    segment_length,
    segment_sum,
    sigmoid,
    tanh,
)
from model.gpu.triton.launching import PLAIN, Launching
from model.gpu.triton.products import (
    ENOUGH_PROGRAMS,
    WIDEST,
    WIDEST_SLICE,
    Scratch,
    column_tile,
    most_tiles,
    pack,
    stages,
)

UNITS = 32  # per program; with this few rows per gate Triton uses mma.sync for any number of warps
BLOCK = 32  # of the loop over K
WARPS = 4
GATES = 3  # reset, update, candidate


@triton.jit(do_not_specialize=["rows", "frame", "frames", "ahead_bytes"])
def recurrent_kernel(
    weights, bias, gates, x_in, x_out, old, read, new, write, partial, counters, rows, frame, frames,
    ahead, ahead_bytes,
    H: tl.constexpr, BASE: tl.constexpr, MORE: tl.constexpr, SEGMENTS: tl.constexpr, STEPS: tl.constexpr,
    BU: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SLICE: tl.constexpr,
    READ: tl.constexpr, WRITE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute one tile of units, one segment, one tile of rows; grid (row tiles, unit tiles, segments).

    weights (tiles, SEGMENTS, STEPS, 3 BU, BK) fp16; gates (B, T, 3H), x_in and x_out (B, T, H) fp16. The state before
    the frame lies in `old` (at the rows `read` says, with READ), the one after it goes to `new` (at `write`, with
    WRITE). No race: `old` and `new` are never the same memory, and x_out is written where x_in was read.
    """
    row_tile, tile, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = row_tile * BN + tl.arange(0, BN)
    taken = tl.minimum(row, rows - 1)
    k = tl.arange(0, BK)
    first = segment_first(segment, BASE, MORE)
    length = segment_length(segment, BASE, MORE)
    begin(PDL)
    source = taken.to(tl.int64)
    if READ:
        source = tl.load(read + taken).to(tl.int64)
    state_at = old + source[:, None] * H + first + k[None, :]
    unit = tl.arange(0, BU)
    weight_at = weights + (tile * SEGMENTS + segment) * (STEPS * 3 * BU * BK) + unit[:, None] * BK + k[None, :]
    reset = tl.zeros((BU, BN), tl.float32)
    update = tl.zeros((BU, BN), tl.float32)
    candidate = tl.zeros((BU, BN), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        at = weight_at + step * (3 * BU * BK)
        state = tl.trans(tl.load(state_at + step * BK, mask=(step * BK + k)[None, :] < length, other=0.0))
        reset = tl.dot(tl.load(at), state, reset)
        update = tl.dot(tl.load(at + BU * BK), state, update)
        candidate = tl.dot(tl.load(at + 2 * BU * BK), state, candidate)
    place = tl.num_programs(0) * tile + row_tile
    first_sums = partial + place * (SEGMENTS * 3 * BU * BN) + unit[:, None] * BN
    here = first_sums + tl.arange(0, SLICE)[None, :]
    mine = first_sums + segment * (3 * BU * BN) + tl.arange(0, BN)[None, :]
    tl.store(mine, reset)
    tl.store(mine + BU * BN, update)
    tl.store(mine + 2 * BU * BN, candidate)
    if AHEAD:
        part = segment * (tl.num_programs(0) * tl.num_programs(1)) + place
        prefetch_part(ahead, ahead_bytes, part, tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2))
    if arrives_last(counters + place, SEGMENTS):
        for offset in tl.static_range(0, BN, SLICE):  # all columns at once do not fit the registers
            resets = segment_sum(here + offset, SEGMENTS, 3 * BU * BN)
            updates = segment_sum(here + offset + BU * BN, SEGMENTS, 3 * BU * BN)
            candidates = segment_sum(here + offset + 2 * BU * BN, SEGMENTS, 3 * BU * BN)
            next_state(
                resets, updates, candidates, bias, gates, x_in, x_out, old, read, new, write, tile,
                row_tile * BN + offset + tl.arange(0, SLICE), rows, frame, frames, H, BU, READ, WRITE,
            )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "frame", "frames", "ahead_bytes"])
def wide_recurrent_kernel(
    weights, bias, gates, x_in, x_out, old, read, new, write,
    partial, counters,  # noqa: ARG001 - the arguments of `recurrent_kernel`
    rows, frame, frames, ahead, ahead_bytes,
    H: tl.constexpr, BASE: tl.constexpr, MORE: tl.constexpr, SEGMENTS: tl.constexpr, STEPS: tl.constexpr,
    BU: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    SLICE: tl.constexpr,  # noqa: ARG001
    READ: tl.constexpr, WRITE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `recurrent_kernel`, with all segments in one program, one after the other; grid (row tiles, unit tiles)."""
    row_tile, tile = tl.program_id(0), tl.program_id(1)
    row = row_tile * BN + tl.arange(0, BN)
    taken = tl.minimum(row, rows - 1)
    k = tl.arange(0, BK)
    begin(PDL)
    source = taken.to(tl.int64)
    if READ:
        source = tl.load(read + taken).to(tl.int64)
    state_at = old + source[:, None] * H + k[None, :]
    weight_at = weights + tile * (SEGMENTS * STEPS * 3 * BU * BK) + tl.arange(0, BU)[:, None] * BK + k[None, :]
    zero = tl.zeros((BU, BN), tl.float32)
    reset, update, candidate = zero, zero, zero  # of a segment
    resets, updates, candidates = zero, zero, zero  # of all
    for i in tl.range(0, SEGMENTS * STEPS, num_stages=STAGES):
        place = tl.full((), i, tl.int32)  # the interpreter's counters are not tensors
        segment, step = place // STEPS, place % STEPS
        inside = (step * BK + k)[None, :] < segment_length(segment, BASE, MORE)
        first = segment_first(segment, BASE, MORE) + step * BK
        state = tl.trans(tl.load(state_at + first, mask=inside, other=0.0))
        at = weight_at + i * (3 * BU * BK)
        reset = tl.dot(tl.load(at), state, reset)
        update = tl.dot(tl.load(at + BU * BK), state, update)
        candidate = tl.dot(tl.load(at + 2 * BU * BK), state, candidate)
        ends = step == STEPS - 1
        resets, reset = tl.where(ends, resets + reset, resets), tl.where(ends, 0.0, reset)
        updates, update = tl.where(ends, updates + update, updates), tl.where(ends, 0.0, update)
        candidates, candidate = tl.where(ends, candidates + candidate, candidates), tl.where(ends, 0.0, candidate)
    if AHEAD:
        prefetch_part(ahead, ahead_bytes, tl.num_programs(0) * tile + row_tile, tl.num_programs(0) * tl.num_programs(1))
    next_state(
        resets, updates, candidates, bias, gates, x_in, x_out, old, read, new, write, tile, row, rows, frame, frames,
        H, BU, READ, WRITE,
    )  # fmt: skip


@triton.jit
def next_state(
    reset, update, candidate, bias, gates, x_in, x_out, old, read, new, write, tile, row, rows, frame, frames,
    H: tl.constexpr, BU: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    """Compute gates from products of a tile of units with the states of some rows; store next states and outputs."""
    taken = tl.minimum(row, rows - 1)
    source, target = taken.to(tl.int64), taken.to(tl.int64)
    if READ:
        source = tl.load(read + taken).to(tl.int64)
    if WRITE:
        target = tl.load(write + taken).to(tl.int64)
    column = taken * frames + frame
    unit = tile * BU + tl.arange(0, BU)
    inside = unit < H
    wanted = inside[:, None] & (row < rows)[None, :]
    reset += tl.load(bias + unit, mask=inside, other=0.0)[:, None]
    update += tl.load(bias + H + unit, mask=inside, other=0.0)[:, None]
    candidate += tl.load(bias + 2 * H + unit, mask=inside, other=0.0)[:, None]
    gate_at = gates + column[None, :] * (3 * H) + unit[:, None]
    reset = sigmoid(tl.load(gate_at, mask=wanted, other=0.0).to(tl.float32) + reset)
    update = sigmoid(tl.load(gate_at + H, mask=wanted, other=0.0).to(tl.float32) + update)
    candidate = tanh(tl.load(gate_at + 2 * H, mask=wanted, other=0.0).to(tl.float32) + reset * candidate)
    before = tl.load(old + source[None, :] * H + unit[:, None], mask=wanted, other=0.0).to(tl.float32)
    state = (candidate + update * (before - candidate)).to(tl.float16)
    tl.store(new + target[None, :] * H + unit[:, None], state, mask=wanted)
    x_at = column[None, :] * H + unit[:, None]
    x = tl.load(x_in + x_at, mask=wanted, other=0.0).to(tl.float32) + state.to(tl.float32)
    tl.store(x_out + x_at, x.to(tl.float16), mask=wanted)


@triton.jit
def store_states_kernel(states, slab, write, H: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Store the states (B, H) of a one-frame step to their rows of the slab; grid (B, blocks of H)."""
    begin(PDL)
    row = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(states + row * H + unit, mask=unit < H)
    tl.store(slab + tl.load(write + row).to(tl.int64) * H + unit, state, mask=unit < H)


class FrameRecurrence:
    """Recurrent weights (3H, H) of one layer, with one launch per frame; gates: reset, update, candidate."""

    def __init__(
        self, weight: Tensor, bias: Tensor, scratch: Scratch, states: Tensor, launching: Launching = PLAIN
    ) -> None:
        """weight (3H, H) fp16, bias (3H,); `states` (2, largest B, H) fp16, may be shared by all layers."""
        self.hidden = weight.shape[1]
        cuts = recurrent_segments(self.hidden)
        self.segments = len(cuts) - 1
        self.tiles = -(-self.hidden // UNITS)
        self.length = padded_length(self.hidden, self.segments, BLOCK)
        units = weight.new_zeros(GATES, self.tiles * UNITS, self.hidden)
        units[:, : self.hidden] = weight.view(GATES, self.hidden, self.hidden)
        rows = units.view(GATES, self.tiles, UNITS, self.hidden).transpose(0, 1)  # (tiles, 3, UNITS, H)
        self.weights = pack(rows.reshape(self.tiles, GATES * UNITS, self.hidden), cuts, self.length, BLOCK)
        self.bias = bias.float().contiguous()
        self.scratch, self.states, self.launching = scratch, states, launching
        self.ahead: Tensor | None = None  # weights of the product after the layer, to prefetch

    @staticmethod
    def scratch_size(hidden: int, rows: int) -> tuple[int, int]:
        """Return the partial sums and tiles for launches of up to this many rows; wide launches need none."""
        row_tiles = -(-hidden // UNITS)
        tiles = row_tiles * most_tiles(row_tiles, -(-rows // WIDEST))
        return tiles * (len(recurrent_segments(hidden)) - 1) * GATES * UNITS * WIDEST, tiles

    def wide(self, rows: int) -> bool:
        """Return whether there are enough programs without dividing K among them."""
        return self.tiles * -(-rows // column_tile(rows)) >= ENOUGH_PROGRAMS

    def constants(self, rows: int) -> dict[str, Any]:
        """Return the compile-time constants of the kernel and its options, except the location of the states."""
        base, more = divmod(self.hidden // STEP, self.segments)
        steps, width = self.length // BLOCK, column_tile(rows)
        depth = steps * self.segments if self.wide(rows) else steps
        return {
            "H": self.hidden, "BASE": base, "MORE": more, "SEGMENTS": self.segments, "STEPS": steps, "BU": UNITS,
            "BN": width, "BK": BLOCK, "STAGES": stages(depth, (GATES * UNITS + width) * BLOCK * 2),
            "SLICE": min(width, WIDEST_SLICE), "num_warps": WARPS, "enable_fp_fusion": False,
        }  # fmt: skip

    def enqueue(
        self, gates: Tensor, x_in: Tensor, x_out: Tensor, slab: Tensor, read: Tensor, write: Tensor,
        frames: int,
    ) -> None:  # fmt: skip
        """gates (B, T, 3H), x_in and x_out (B, T, H) fp16: T frames of all B rows.

        A step of one frame must not write the slab while other programs read it, so it has an additional launch.
        """
        rows = gates.shape[0]
        constants = self.constants(rows)
        tiles = -(-rows // constants["BN"])
        wide = self.wide(rows)
        assert wide or self.scratch.holds(tiles * self.tiles, self.segments * GATES * UNITS * constants["BN"])
        kernel = wide_recurrent_kernel if wide else recurrent_kernel
        grid = (tiles, self.tiles, 1 if wide else self.segments)
        for frame in range(frames):
            starts, ends = frame == 0, frame == frames - 1 and frames > 1
            old = slab if starts else self.states[(frame - 1) % 2]
            new = slab if ends else self.states[frame % 2]
            kernel[grid](
                self.weights, self.bias, gates, x_in, x_out, old, read, new, write, self.scratch.partial,
                self.scratch.counters, rows, frame, frames, **constants, READ=starts, WRITE=ends,
                **self.launching.fetched(self.ahead if starts else None, self.weights), **self.launching.options,
            )  # fmt: skip
        if frames == 1:
            store_states_kernel[rows, -(-self.hidden // 1024)](
                self.states[0], slab, write, H=self.hidden, BLOCK=1024, num_warps=4,
                **self.launching.options,
            )  # fmt: skip


def states_buffer(rows: int, hidden: int, device: torch.device) -> Tensor:
    """Return a buffer for states between the first and the last frame of a step, (2, B, H) fp16."""
    return torch.zeros(2, rows, hidden, dtype=torch.float16, device=device)
