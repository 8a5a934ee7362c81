"""Products with the network's weights for few columns: Y = act(W X + b), one launch each.

The weights are the M side and are streamed once; the columns are the frames of all rows. K is cut into segments that
depend on the layer alone, each computed by its own program; the last program of a tile to finish adds the partial sums
in ascending order, so the order of arrival changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.gpu.segments import STEP, TILE_ROWS, block_depth, cut_points, padded_length, product_segments
from model.gpu.triton.arithmetic import (
    LOG2E,
    arrives_last,
    begin,
    prefetch_part,
    segment_first,
    segment_length,
    segment_sum,
    sigmoid,
)
from model.gpu.triton.launching import PLAIN, Launching

IDENTITY, SILU, LOG_SOFTMAX = 0, 1, 2
CONTEXT = tl.constexpr(4)  # frames before a step's own that a convolution's input begins with: as in torch
_SILU, _LOG_SOFTMAX = tl.constexpr(SILU), tl.constexpr(LOG_SOFTMAX)
NARROWEST, WIDEST = 8, 64  # columns per program
WIDEST_SLICE = 32  # columns of sums and activations at a time: more do not fit the registers
ENOUGH_PROGRAMS = 110  # for 132 multiprocessors: from here on K is not divided among programs
WARPS = 2  # fewer than the four of a warp group, so that Triton uses mma.sync and not wgmma, which has other bits


@triton.jit(do_not_specialize=["columns", "frames", "y_row", "ahead_bytes"])
def product_kernel(
    weights, x, bias, y, partial, counters, columns, frames, y_row, ahead, ahead_bytes,
    M: tl.constexpr, K: tl.constexpr, BASE: tl.constexpr, MORE: tl.constexpr, SEGMENTS: tl.constexpr,
    STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    CHANNELS: tl.constexpr, LEAD: tl.constexpr, ACT: tl.constexpr, SLICE: tl.constexpr,
    FIRST: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute one tile of rows, one segment, one tile of columns; grid (column tiles, row tiles, segments).

    weights (tiles, SEGMENTS, STEPS, BM, BK) fp16; x (columns, K) fp16, or with CHANNELS the joined frames of a
    convolution (B, 4 + 2 frames, CHANNELS); y (columns, M) fp16, with LEAD frames before each row of the batch.
    """
    column_tile, tile, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    k = tl.arange(0, BK)
    length = segment_length(segment, BASE, MORE)
    weight_at = weights + (tile * SEGMENTS + segment) * (STEPS * BM * BK) + tl.arange(0, BM)[:, None] * BK + k[None, :]
    start = input_start(column_tile * BN + tl.arange(0, BN), columns, frames, K, CHANNELS)
    x_at = x + start[:, None] + segment_first(segment, BASE, MORE) + k[None, :]
    begin(PDL)
    total = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        w = tl.load(weight_at + step * (BM * BK))
        v = tl.load(x_at + step * BK, mask=(step * BK + k)[None, :] < length, other=0.0)
        total = tl.dot(w, tl.trans(v), total)
    if AHEAD:
        part = (segment * tl.num_programs(1) + tile) * tl.num_programs(0) + column_tile
        prefetch_part(ahead, ahead_bytes, part, tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2))
    place = tl.num_programs(0) * tile + column_tile
    here = partial + place * (SEGMENTS * BM * BN) + tl.arange(0, BM)[:, None] * BN
    tl.store(here + segment * (BM * BN) + tl.arange(0, BN)[None, :], total)
    if arrives_last(counters + place, SEGMENTS):
        for offset in tl.static_range(0, BN, SLICE):
            summed = segment_sum(here + offset + tl.arange(0, SLICE)[None, :], SEGMENTS, BM * BN)
            column = column_tile * BN + offset + tl.arange(0, SLICE)
            finish(summed, bias, y, tile, column, columns, frames, y_row, M, BM, LEAD, ACT, FIRST)


@triton.jit(do_not_specialize=["columns", "frames", "y_row", "ahead_bytes"])
def wide_product_kernel(
    weights, x, bias, y, partial, counters,  # noqa: ARG001 - the arguments of `product_kernel`
    columns, frames, y_row, ahead, ahead_bytes,
    M: tl.constexpr, K: tl.constexpr, BASE: tl.constexpr, MORE: tl.constexpr, SEGMENTS: tl.constexpr,
    STEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    CHANNELS: tl.constexpr, LEAD: tl.constexpr, ACT: tl.constexpr,
    SLICE: tl.constexpr,  # noqa: ARG001
    FIRST: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `product_kernel`, with all segments in one program, one after the other; grid (column tiles, row tiles).

    With many columns there are enough programs, and partial sums would be larger than the weights.
    """
    column_tile, tile = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, BK)
    weight_at = weights + tile * (SEGMENTS * STEPS * BM * BK) + tl.arange(0, BM)[:, None] * BK + k[None, :]
    column = column_tile * BN + tl.arange(0, BN)
    x_at = x + input_start(column, columns, frames, K, CHANNELS)[:, None] + k[None, :]
    begin(PDL)
    total = tl.zeros((BM, BN), tl.float32)
    summed = tl.zeros((BM, BN), tl.float32)
    for i in tl.range(0, SEGMENTS * STEPS, num_stages=STAGES):
        at = tl.full((), i, tl.int32)  # the interpreter's counters are not tensors
        segment, step = at // STEPS, at % STEPS
        inside = (step * BK + k)[None, :] < segment_length(segment, BASE, MORE)
        w = tl.load(weight_at + i * (BM * BK))
        v = tl.load(x_at + segment_first(segment, BASE, MORE) + step * BK, mask=inside, other=0.0)
        total = tl.dot(w, tl.trans(v), total)
        ends = step == STEPS - 1
        summed = tl.where(ends, summed + total, summed)
        total = tl.where(ends, 0.0, total)
    if AHEAD:
        place = tl.num_programs(0) * tile + column_tile
        prefetch_part(ahead, ahead_bytes, place, tl.num_programs(0) * tl.num_programs(1))
    finish(summed, bias, y, tile, column, columns, frames, y_row, M, BM, LEAD, ACT, FIRST)


@triton.jit
def input_start(column, columns, frames, K: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the start of a column's input; columns after the last one repeat it, and are not stored."""
    taken = tl.minimum(column, columns - 1)
    if CHANNELS > 0:  # noqa: SIM108 - of the constants one branch is compiled
        start = (2 * taken + CONTEXT * (taken // frames)) * CHANNELS
    else:
        start = taken * K
    return start


@triton.jit
def finish(
    total, bias, y, tile, column, columns, frames, y_row,
    M: tl.constexpr, BM: tl.constexpr, LEAD: tl.constexpr, ACT: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Add the bias to a tile's sums, apply the activation, and store.

    A log-softmax is over the FIRST rows, and separately over the rows after them, if there are any.
    """
    row = tile * BM + tl.arange(0, BM)
    total += tl.load(bias + row)[:, None]
    stored = (row < M)[:, None] & (column < columns)[None, :]
    if ACT == _LOG_SOFTMAX:
        total = tl.where((row < M)[:, None], total, float("-inf"))
        if FIRST < M:
            within = (row < FIRST)[:, None]
            others = log_softmax(tl.where(within, float("-inf"), total))
            total = tl.where(within, log_softmax(tl.where(within, total, float("-inf"))), others)
        else:
            total = log_softmax(total)
        out_at = (column // frames) * y_row + (column % frames) * M
        tl.store(y + out_at[None, :] + row[:, None], total, mask=stored)
    else:
        if ACT == _SILU:
            total = total * sigmoid(total)
        out_at = (column + LEAD * (column // frames + 1)) * M
        tl.store(y + out_at[None, :] + row[:, None], total.to(tl.float16), mask=stored)


@triton.jit
def log_softmax(total):
    """Compute log-softmax over the rows of each column; rows of -inf are excluded and unchanged."""
    total -= tl.max(total, axis=0)[None, :]
    total -= tl.log(tl.sum(tl.exp2(total * LOG2E), axis=0))[None, :]
    return total


def pack(rows: Tensor, cuts: list[int], length: int, block: int) -> Tensor:
    """Return weights (tiles, R, K) in the order a program reads them: (tiles, segments, length / block, R, block).

    Each segment is padded with zeros to `length`; a step of zeros does not change a sum.
    """
    tiles, count, _ = rows.shape
    parts = []
    for low, high in pairwise(cuts):
        part = rows.new_zeros(tiles, count, length)
        part[:, :, : high - low] = rows[:, :, low:high]
        parts.append(part.view(tiles, count, length // block, block).transpose(1, 2))  # (tiles, steps, R, block)
    return torch.stack(parts, dim=1).contiguous()


@dataclass(frozen=True, slots=True)
class Scratch:
    """Partial sums and counters shared by all products of a network, whose launches do not overlap."""

    partial: Tensor  # float32
    counters: Tensor  # int32, zero between launches

    def holds(self, tiles: int, floats: int) -> bool:
        """Return whether there is room for `tiles` tiles of `floats` partial sums each."""
        return tiles <= len(self.counters) and tiles * floats <= len(self.partial)

    @classmethod
    def allocate(cls, floats: int, tiles: int, device: torch.device) -> Scratch:
        """Allocate `floats` partial sums and `tiles` counters."""
        return cls(
            torch.empty(max(1, floats), dtype=torch.float32, device=device),
            torch.zeros(max(1, tiles), dtype=torch.int32, device=device),
        )


def column_tile(columns: int, widest: int = WIDEST) -> int:
    """Return the columns of one program: a power of two from 8 to `widest`."""
    width = NARROWEST
    while width < min(columns, widest):
        width *= 2
    return width


class Product:
    """Packed weights of one layer, and its launch for any number of columns.

    With 64 rows of weights, and all steps of a segment in flight at once, about 100 KB of loads are outstanding on
    every multiprocessor of an H100 (computed), more than the 30 KB that its memory needs by Little's law.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, *, act: int = IDENTITY, channels: int = 0, lead: int = 0,
        segments: int | None = None, first: int | None = None,
    ) -> None:  # fmt: skip
        """weight (M, K) fp16, bias (M,). `channels`: of a convolution's input. `lead`: frames before each row's output.

        `segments`: of K, if another kernel that must be bit-identical determines it. A log-softmax of two groups of
        outputs has `first` outputs in the first group.

        Raises: ValueError if K is not a multiple of 16, or a log-softmax is wider than 128.
        """
        self.m, self.k = weight.shape
        self.act, self.channels, self.lead, self.first = act, channels, lead, self.m if first is None else first
        if act == LOG_SOFTMAX and self.m > 2 * TILE_ROWS:
            raise ValueError(
                f"the log-softmax supports at most {2 * TILE_ROWS} letters and phones in total, not {self.m}"
            )
        self.bm = max(16, triton.next_power_of_2(self.m)) if act == LOG_SOFTMAX else TILE_ROWS
        self.tiles = -(-self.m // self.bm)
        self.segments = segments or product_segments(self.m, self.k, whole=act == LOG_SOFTMAX)
        self.bk = min(block_depth(self.k), 64 if segments is None else 32)  # short segments: less padding
        self.length = padded_length(self.k, self.segments, self.bk)
        rows = weight.new_zeros(self.tiles * self.bm, self.k)
        rows[: self.m] = weight
        cuts = cut_points(self.k, self.segments)
        self.weights = pack(rows.view(self.tiles, self.bm, self.k), cuts, self.length, self.bk)
        self.bias = torch.zeros(self.tiles * self.bm, device=weight.device)
        self.bias[: self.m] = bias.float()

    def width(self, columns: int) -> int:
        """Return the columns of one program; fixed for a log-softmax, whose sum over rows depends on the tile."""
        return column_tile(columns, NARROWEST if self.act == LOG_SOFTMAX else WIDEST)

    def wide(self, columns: int) -> bool:
        """Return whether there are enough programs without dividing K among them."""
        return -(-columns // self.width(columns)) * self.tiles >= ENOUGH_PROGRAMS and self.act != LOG_SOFTMAX

    def scratch_size(self, columns: int) -> tuple[int, int]:
        """Return the partial sums and tiles for launches of up to this many columns; wide launches need none."""
        width = NARROWEST if self.act == LOG_SOFTMAX else WIDEST
        most = -(-columns // width)
        tiles = self.tiles * (most if self.act == LOG_SOFTMAX else most_tiles(self.tiles, most))
        return tiles * self.segments * self.bm * width, tiles

    def constants(self, columns: int) -> dict[str, Any]:
        """Return the compile-time constants of the kernel and its options."""
        base, more = divmod(self.k // STEP, self.segments)
        steps, width = self.length // self.bk, self.width(columns)
        depth = steps * self.segments if self.wide(columns) else steps
        return {
            "M": self.m, "K": self.k, "BASE": base, "MORE": more, "SEGMENTS": self.segments, "STEPS": steps,
            "BM": self.bm, "BN": width, "BK": self.bk, "STAGES": stages(depth, (self.bm + width) * self.bk * 2),
            "CHANNELS": self.channels, "LEAD": self.lead, "ACT": self.act,
            "SLICE": min(width, WIDEST_SLICE), "FIRST": self.first,
            "num_warps": WARPS, "enable_fp_fusion": False,
        }  # fmt: skip

    def enqueue(
        self, x: Tensor, y: Tensor, columns: int, frames: int, scratch: Scratch, y_row: int = 0,
        launching: Launching = PLAIN, ahead: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Multiply `columns` frames, `frames` per row; `y_row`: stride of a row of log-probabilities.

        `ahead`: weights of the next product to prefetch.
        """
        tiles, wide = -(-columns // self.width(columns)), self.wide(columns)
        assert wide or scratch.holds(tiles * self.tiles, self.segments * self.bm * self.width(columns))
        kernel = wide_product_kernel if wide else product_kernel
        kernel[tiles, self.tiles, 1 if wide else self.segments](
            self.weights, x, self.bias, y, scratch.partial, scratch.counters, columns, frames, y_row,
            **self.constants(columns),
            **launching.fetched(ahead, self.weights), **launching.options,
        )  # fmt: skip


def most_tiles(row_tiles: int, column_tiles: int) -> int:
    """Return the most column tiles, up to `column_tiles`, with which K is divided among programs."""
    return min(column_tiles, (ENOUGH_PROGRAMS - 1) // row_tiles)


def stages(steps: int, stage_bytes: int, budget: int = 72 * 1024) -> int:
    """Return the pipeline stages: all steps of a segment if they fit the shared memory of a third of an SM."""
    return max(2, min(steps, budget // stage_bytes) + 1)
