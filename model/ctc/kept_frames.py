"""Compact storage of a stream's frames for a second search: only the symbols that the beam search reads.

The search reads only the likeliest symbols of a frame, so a search over kept frames is bit-identical to one over the
model's outputs. Speech takes about 13 symbols of six bytes per second, and one byte per frame; silence takes one byte
per frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model.ctc.search.logs import exp
from model.ctc.search.prefix_score import KEEPS_BLANK, KEPT_SYMBOLS
from model.machine.compiled import DoubleArray, FloatArray, LongArray, compiled_inline, entry_point

NOTHING = 255  # count of a frame without a possible symbol, which only a broken model outputs


@compiled_inline
def _has(symbols: NDArray[np.uint16], first: int, end: int, symbol: int) -> bool:
    """Whether a symbol is in symbols[first:end]."""
    has = False
    for k in range(first, end):
        has = has or symbols[k] == symbol
    return has


@entry_point
def prune(  # noqa: PLR0917 - compiled code has no keywords
    log_probs: FloatArray,
    writes: NDArray[np.uint8],
    blank: int,
    limits: DoubleArray,
    counts: NDArray[np.uint8],
    symbols: NDArray[np.uint16],
    values: FloatArray,
    ends: LongArray,
) -> None:
    """Select the symbols of log_probs (B, T, V) that a search with these `limits` reads, best first; then the blank.

    The blank is added if the search keeps it in each frame. Outputs: counts (B, T), and ends (B,) of the rows in
    `symbols` and `values`. `writes` (V,) is 0 for symbols that the search never reads.
    """
    size = 0
    for b in range(log_probs.shape[0]):
        for t in range(log_probs.shape[1]):
            row = log_probs[b, t]
            count, total = 0, 0.0
            certain = limits[0] < 1.0 and np.inf > row[blank] and exp(np.float64(row[blank])) >= limits[0]
            while not certain and count < limits[1] and (total < limits[0] or limits[0] >= 1.0):
                best = -1
                for c in range(len(row)):
                    better = abs(row[c]) < np.inf and (best < 0 or row[c] > row[best])
                    if writes[c] and better and not _has(symbols, size - count, size, c):
                        best = c
                if best < 0:
                    break
                symbols[size], values[size] = best, row[best]
                total += exp(np.float64(row[best]))
                count, size = count + 1, size + 1
            keeps_blank = limits[KEEPS_BLANK] != 0 and not certain and abs(row[blank]) < np.inf
            if keeps_blank and not _has(symbols, size - count, size, blank):
                symbols[size], values[size] = blank, row[blank]
                count, size = count + 1, size + 1
            counts[b, t] = count if count or certain else NOTHING
        ends[b] = size


@dataclass(slots=True, eq=False)
class KeptFrames:
    """The last frames of one stream, from frame `begin` on: uint8 counts, uint16 symbols and float32 log-probs."""

    begin: int = 0
    counts: bytearray = field(default_factory=bytearray)
    symbols: bytearray = field(default_factory=bytearray)
    values: bytearray = field(default_factory=bytearray)

    def drop(self, until: int) -> None:
        """Drop the frames before `until`."""
        frames = until - self.begin
        if frames > 0:
            entries = _entries(self.counts[:frames])
            del self.counts[:frames], self.symbols[: 2 * entries], self.values[: 4 * entries]
            self.begin = until

    def restart(self, at: int) -> None:
        """Drop all frames; the next frame is number `at`."""
        self.begin, self.counts, self.symbols, self.values = at, bytearray(), bytearray(), bytearray()

    def since(self, begin: int) -> KeptFrames:
        """Return a copy of the frames from `begin` on."""
        entries = _entries(self.counts[: begin - self.begin])
        return KeptFrames(
            begin, self.counts[begin - self.begin :], self.symbols[2 * entries :], self.values[4 * entries :]
        )

    def check(self, symbols: int) -> None:
        """Raises: ValueError unless the parts fit together, for this many symbols."""
        named, entries = np.frombuffer(self.symbols, np.uint16), _entries(self.counts)
        if self.begin < 0 or (len(named), len(self.values)) != (entries, 4 * entries) or (named >= symbols).any():
            raise ValueError("these frames are damaged, or of another model")

    def log_probs(self, symbols: int, blank: int) -> NDArray[np.float32]:
        """Return (1, T, V): symbols that are not kept have probability 0, certain blanks 1."""
        counts = np.frombuffer(self.counts, np.uint8)  # (T,)
        rows = np.full((1, len(counts), symbols), -np.inf, np.float32)
        rows[0, counts == 0, blank] = 0.0
        places = np.repeat(np.arange(len(counts)), np.where(counts == NOTHING, 0, counts))  # (N,)
        rows[0, places, np.frombuffer(self.symbols, np.uint16)] = np.frombuffer(self.values, np.float32)
        return rows


def _entries(counts: bytearray) -> int:
    return sum(counts) - NOTHING * counts.count(NOTHING)


class FrameKeeper:
    """Appends the symbols that a search reads to the kept frames of streams."""

    def __init__(self, writes: NDArray[np.uint8], blank: int, limits: DoubleArray) -> None:
        """`limits` and `writes` (V,) are those of the search."""
        self._writes, self._blank, self._limits = writes, blank, limits
        self._most = min(int(limits[KEPT_SYMBOLS] + limits[KEEPS_BLANK]), len(writes))

    def keep(self, streams: Iterator[tuple[KeptFrames, int]], log_probs: FloatArray) -> None:
        """Append to each of B streams the given number of last frames of its row of log_probs (B, T, V)."""
        rows, frames, _ = log_probs.shape
        counts = np.empty((rows, frames), np.uint8)
        symbols = np.empty(rows * frames * self._most, np.uint16)
        values, ends = np.empty(len(symbols), np.float32), np.empty(rows, np.int64)
        prune(log_probs, self._writes, self._blank, self._limits, counts, symbols, values, ends)
        counted, named, valued = counts.tobytes(), symbols.tobytes(), values.tobytes()
        begin = 0
        for row, ((kept, new), end) in enumerate(zip(streams, ends.tolist(), strict=True)):
            first = row * frames
            if new < frames:
                begin += _entries(bytearray(counted[first : first + frames - new]))
            kept.counts += counted[first + frames - new : first + frames]
            if end > begin:
                kept.symbols += named[2 * begin : 2 * end]
                kept.values += valued[4 * begin : 4 * end]
            begin = end
