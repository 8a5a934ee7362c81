"""Cut points of a product along K, which depend on the layer only, so that its sums do not depend on the batch.

K is counted in steps of 16, the depth of one `mma.sync.m16n8k16`. Each segment is summed from zero; the segments
are then added in ascending order (the contract: `tutti_asr_lab.gpu.reference`).
"""

from __future__ import annotations

STEP = 16
"""Depth of one tensor core instruction in fp16."""
RECURRENT_SEGMENTS = 8
"""Segments of a recurrent product: one per warp of a block of the persistent kernel."""
TILE_ROWS = 64
"""Rows of weights in one program of a product."""
SHALLOWEST = 128
"""Approximate least depth of a segment."""
LARGEST_WAVE = 396
"""Programs of a launch that are resident at once: three on each of 132 multiprocessors."""


def cut_points(depth: int, segments: int) -> list[int]:
    """Return bounds [0, ..., depth] of `segments` runs along K; the first runs are one step longer if needed.

    Raises: ValueError if `depth` is not a multiple of 16, or has fewer steps than segments.
    """
    steps, rest = divmod(depth, STEP)
    if rest or steps < segments:
        raise ValueError(f"depth {depth} cannot be cut into {segments} segments of whole steps of {STEP}")
    base, more = divmod(steps, segments)
    cuts = [0]
    for segment in range(segments):
        cuts.append(cuts[-1] + STEP * (base + (segment < more)))
    return cuts


def recurrent_segments(hidden: int) -> list[int]:
    """Return the cut points of a GRU's recurrent product; with fewer than 8 steps there is one per segment."""
    return cut_points(hidden, min(RECURRENT_SEGMENTS, hidden // STEP))


def padded_length(depth: int, segments: int, block: int) -> int:
    """Return the length along K of the longest segment, rounded up to whole blocks of the kernel's loop."""
    longest = STEP * -(-(depth // STEP) // segments)
    return block * -(-longest // block)


def block_depth(depth: int) -> int:
    """Return the length along K of one iteration of a product's loop: small networks have shorter segments."""
    return 64 if depth >= 1024 else 32


def product_segments(rows: int, depth: int, *, whole: bool = False) -> int:
    """Return the number of segments of a product with weights (rows, depth): 2 to 3 programs per multiprocessor.

    Of the counts that give this many, the one with the least padding is chosen, and of those the largest; segments are
    at least about 128 deep, as shorter ones cost more for sums than they save. `whole`: one tile of rows, the head.
    """
    block = block_depth(depth)
    tiles = 1 if whole else -(-rows // TILE_ROWS)
    most = max(1, min(LARGEST_WAVE // tiles, -(-depth // SHALLOWEST)))
    least = max(1, min(LARGEST_WAVE * 2 // 3, most * tiles) // tiles)
    return min(range(least, most + 1), key=lambda s: (s * padded_length(depth, s, block), -s))
