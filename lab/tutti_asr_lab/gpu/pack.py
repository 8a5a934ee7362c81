"""Sizes and memory layout of the persistent GRU kernels: assignment of weights to blocks and warps, and their order.

The constants are those of `gru_layout.h`; a kernel is compiled for one `Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from model.gpu.segments import recurrent_segments

STEP = 16  # depth of one mma.sync.m16n8k16
WARPS = 8
LANES = 32
TILE_ROWS = 8  # batch rows of one product
MAX_ROWS = 128
LAYER_ROWS = 8  # most rows for one launch per layer: with more, three launches are faster (loadtest/LOG.md)
LAYER_COLUMNS = 16  # most rows times frames, for the same reason
MOST_BLOCKS = 132  # one block per multiprocessor of an H100
REGISTERS = 255  # of a thread
OTHER_REGISTERS = 44  # for addresses, inputs of the gates, counters; checked by tests/lab/gpu/test_gru_compiled.py
GATES = 3
MOST_SHARED_BYTES = 227 * 1024  # of a block on sm_90


@dataclass(frozen=True, slots=True)
class Layout:
    """Distribution of a hidden size over blocks, warps, registers and shared memory."""

    hidden: int
    units: int  # per block
    register_fragments: int  # per warp; a fragment is a tile of 16 x 16 weights, 16 bytes per lane
    max_rows: int = MAX_ROWS
    bulk_fragments: int | None = None  # per warp, loaded to shared memory first, whether or not they stay there

    @property
    def blocks(self) -> int:
        """Number of blocks of the grid; all must be resident at once."""
        return self.hidden // self.units

    @property
    def segments(self) -> int:
        """Number of segments of K, one per warp."""
        return len(recurrent_segments(self.hidden)) - 1

    @property
    def pairs(self) -> int:
        """Number of pairs of k16 steps in the longest segment."""
        longest = -(-(self.hidden // STEP) // self.segments)
        return -(-longest // 2)

    @property
    def tiles(self) -> int:
        """Number of tiles of 16 rows of U in a block; rows from 3 * units on are zero."""
        return -(-3 * self.units // STEP)

    @property
    def fragments(self) -> int:
        """Number of fragments of a warp."""
        return 2 * self.pairs * self.tiles

    @property
    def shared_bytes(self) -> int:
        """Size of `SharedLayout` of `gru_exchange.h`."""
        room = self.fragments - self.register_fragments if self.bulk_fragments is None else self.bulk_fragments
        fragments = max(1, WARPS * room * LANES) * 16
        partial = 2 * self.segments * self.tiles * STEP * TILE_ROWS * 4
        own = self.max_rows * self.units * 4
        size = fragments + partial + own + 3 * self.units * 4 + 3 * self.max_rows * 4 + 4
        return -(-size // 16) * 16

    @property
    def workspace_words(self) -> int:
        """32-bit words of the workspace: error, epochs, and two buffers of the exchange."""
        tiles = self.max_rows // TILE_ROWS
        return 64 + -(-self.max_rows // 64) * 64 + 2 * tiles * self.segments * self.pairs * LANES * 4

    def defines(self) -> dict[str, int]:
        """Compile-time constants of the kernel, without the bound on spinning."""
        bulk = {} if self.bulk_fragments is None else {"BULK_FRAGMENTS": self.bulk_fragments}
        return bulk | {
            "HIDDEN": self.hidden,
            "UNITS": self.units,
            "WARPS": WARPS,
            "REGISTER_FRAGMENTS": self.register_fragments,
            "MAX_ROWS": self.max_rows,
        }


@dataclass(frozen=True, slots=True)
class BackwardLayout(Layout):
    """Distribution for the kernel of the backward pass: `gru_backward_body.h`, one tile of 16 rows of U^T per block."""

    @property
    def shared_bytes(self) -> int:
        """Size of `BackwardShared`."""
        fragments = max(1, WARPS * (self.fragments - self.register_fragments) * LANES) * 16
        own, partial = self.max_rows * self.units * 4, 2 * self.segments * self.units * TILE_ROWS * 4
        return fragments + -(-(own + 4 * self.max_rows + 4) // 16) * 16 + partial

    @property
    def workspace_words(self) -> int:
        """32-bit words of the workspace: error, epochs, and two buffers of 64-bit words, one per unit and row."""
        steps = self.segments * 2 * self.pairs  # some are empty
        return 64 + -(-self.max_rows // 64) * 64 + 2 * self.max_rows * steps * STEP * 2


def fits_layer(rows: int, frames: int) -> bool:
    """Return whether a batch is small enough for one launch per layer."""
    return rows <= LAYER_ROWS and rows * frames <= LAYER_COLUMNS


def layout_of(hidden: int) -> Layout:
    """Return the layout of a hidden size.

    Supported: multiples of 16 from 32 to 2,112 with 16 units per block, and multiples of 80 up to 2,560 with 20.

    Raises: ValueError for other sizes.
    """
    units = STEP if hidden <= STEP * MOST_BLOCKS else 20
    if hidden < 2 * STEP or hidden % STEP or hidden % units or hidden // units > MOST_BLOCKS:
        raise ValueError(f"the persistent GRU kernel has no layout for {hidden} units")
    sizes = Layout(hidden, units, 0)
    room = (REGISTERS - OTHER_REGISTERS) // 4 - sizes.pairs - sizes.tiles  # in fragments: 4 registers each
    layout = Layout(hidden, units, min(sizes.fragments, room))
    if layout.shared_bytes > MOST_SHARED_BYTES:
        raise ValueError(f"the recurrent weights of {hidden} units do not fit a multiprocessor")
    return layout


def backward_layout_of(hidden: int) -> BackwardLayout:
    """Return the layout of the kernel of the backward pass: multiples of 16 from 32 to 2,112.

    A step of 16 units takes 16 registers for what other blocks send, four times as many as in the recurrence, so more
    fragments lie in shared memory. Raises: ValueError for other sizes.
    """
    if hidden < 2 * STEP or hidden % STEP or hidden // STEP > MOST_BLOCKS:
        raise ValueError(f"the backward kernel of the persistent GRU has no layout for {hidden} units")
    sizes = BackwardLayout(hidden, STEP, 0)
    room = (REGISTERS - OTHER_REGISTERS) // 4 - 4 * sizes.pairs - GATES  # in fragments: 4 registers each
    return BackwardLayout(hidden, STEP, min(sizes.fragments, room))


def _sources(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return row and column of U (3H + 1, H + 1) for each packed half, in packed shape; last row and column are 0."""
    lane = torch.arange(LANES)[:, None, None]
    register = torch.arange(4)[:, None]
    half = torch.arange(2)
    in_tile = lane // 4 + register % 2 * 8  # (32, 4, 1): row of the tile, by the fragment layout of the PTX manual
    in_step = lane % 4 * 2 + register // 2 * 8 + half  # (32, 4, 2): position in the k16 step
    row = torch.arange(layout.tiles)[:, None, None, None] * STEP + in_tile  # (tiles, 32, 4, 1): row of the block
    gate, unit = row // layout.units, row % layout.units
    block = torch.arange(layout.blocks).view(-1, 1, 1, 1, 1, 1, 1)
    rows = torch.where(gate < 3, gate * layout.hidden + block * layout.units + unit, 3 * layout.hidden)
    cuts = torch.tensor(recurrent_segments(layout.hidden) + [layout.hidden] * (WARPS - layout.segments))
    first, end = cuts[:-1].view(-1, 1, 1, 1, 1, 1), cuts[1:].view(-1, 1, 1, 1, 1, 1)
    step = torch.arange(2 * layout.pairs).view(-1, 1, 1, 1, 1)
    columns = first + step * STEP + in_step  # (warps, steps, 1, 32, 4, 2)
    return rows, torch.where(columns < end, columns, layout.hidden)


def pack(weights: Tensor, layout: Layout) -> Tensor:
    """Pack U (3H, H) to (blocks, warps, k16 steps, tiles, 32 lanes, 4 registers, 2 halves), contiguous, same dtype."""
    hidden = layout.hidden
    if layout.units == STEP:
        tiles = weights.reshape(GATES, hidden // STEP, STEP, hidden // STEP, STEP).permute(1, 3, 0, 2, 4)
        return _pack_tiles(tiles, layout)
    padded = weights.new_zeros(3 * hidden + 1, hidden + 1)
    padded[:-1, :-1] = weights
    rows, columns = (source.to(weights.device) for source in _sources(layout))
    return torch.stack([padded[rows[block], columns] for block in range(layout.blocks)])


def pack_transposed(weights: Tensor, layout: BackwardLayout) -> Tensor:
    """Pack U (3H, H) for the backward pass: as `pack`, with rows and columns of each gate exchanged."""
    hidden = layout.hidden
    return pack(weights.reshape(GATES, hidden, hidden).transpose(1, 2).reshape(-1, hidden), layout)


def _pack_tiles(tiles: Tensor, layout: Layout) -> Tensor:
    """Pack tiles (blocks, k16 steps, gates, 16 rows, 16 of K) by warps, steps missing from a run as zeros."""
    blocks, steps = tiles.shape[:2]
    runs = torch.full((WARPS, 2 * layout.pairs), steps)
    for warp, (first, end) in enumerate(pairwise(recurrent_segments(layout.hidden))):
        runs[warp, : (end - first) // STEP] = torch.arange(first // STEP, end // STEP)
    padded = torch.cat([tiles, tiles.new_zeros(blocks, 1, *tiles.shape[2:])], dim=1)
    # A lane has rows lane / 4 and 8 after it, and of K 2 (lane % 4), the next one, and 8 after these (PTX manual).
    fragments = padded[:, runs.flatten().to(tiles.device)].view(blocks, *runs.shape, GATES, 2, 8, 2, 4, 2)
    return fragments.permute(0, 1, 2, 3, 5, 7, 6, 4, 8).reshape(blocks, *runs.shape, GATES, LANES, 4, 2)
