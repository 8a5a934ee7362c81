"""States of a graph's streams in slots: a row of bytes per slot, gathered into batched tensors with any batch axis.

A stream's part of a tensor is `outer` pieces of `inner` bytes along the batch axis. In the slot the pieces are
contiguous, in the tensor they are one batch apart. One compiled call copies all tensors of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import entry_point

ALIGNMENT = 64  # bytes, of each tensor: a cache line; the runtime requires 8
Bytes = NDArray[np.uint8]
Units = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a stream's state: its shape without the batch axis, and the position `axis` of that, if any."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int | None = 0
    initial: int = 0  # value of every element in a new stream

    @property
    def size(self) -> int:
        """Size for one stream in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def outer(self) -> int:
        """Number of pieces before the batch axis."""
        return math.prod(self.shape[: self.axis]) if self.axis else 1

    def batched(self, rows: int) -> tuple[int, ...]:
        """Return the shape for a batch of this many rows."""
        if self.axis is None:
            return self.shape
        return (*self.shape[: self.axis], rows, *self.shape[self.axis :])


class SlotStates:
    """The slots, and two sets of batched tensors: gathered states `before` a step, and states `after` it to scatter."""

    def __init__(self, tensors: Sequence[StateTensor], *, capacity: int, largest: int) -> None:
        self.tensors = tuple(tensors)
        sizes = [tensor.size for tensor in self.tensors]
        starts = np.cumsum([0, *sizes]).tolist()
        self.state_bytes = int(starts[-1])
        self._arenas = np.cumsum([0, *(-(-size * largest // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self._before, self._after = (_aligned(int(self._arenas[-1])) for _ in range(2))
        pieces = [(each.outer, each.size // max(1, each.outer)) for each in self.tensors]
        unit = np.dtype(f"u{math.gcd(8, *starts, *(size for _, size in pieces))}")  # unit of copies
        table = [
            (start // unit.itemsize, arena // unit.itemsize, outer, size // unit.itemsize)
            for start, arena, (outer, size) in zip(starts[:-1], self._arenas[:-1], pieces, strict=True)
        ]
        self._table = np.array(table, np.int64).reshape(-1, 4)
        self._units = np.zeros((capacity, max(1, self.state_bytes // unit.itemsize)), unit)
        self._slab: Bytes = self._units.view(np.uint8)
        self._before_units, self._after_units = self._before.view(unit), self._after.view(unit)
        self._fresh = b"".join(np.full(each.shape, each.initial, each.dtype).tobytes() for each in self.tensors)
        for slot in range(capacity if any(self._fresh) else 0):
            self.reset(slot)

    def before(self, rows: int) -> list[NDArray[Any]]:
        """Tensors for a batch of this many rows, filled by `gather`; always the same memory."""
        return self._views(self._before, rows)

    def after(self, rows: int) -> list[NDArray[Any]]:
        """Tensors for a batch of this many rows, read by `scatter`; always the same memory."""
        return self._views(self._after, rows)

    def gather(self, slots: NDArray[np.int64]) -> None:
        """Copy the states of these slots into `before`."""
        if self.state_bytes:
            gather_rows(self._units, slots, self._before_units, self._table)

    def scatter(self, slots: NDArray[np.int64], rows: int) -> None:
        """Copy the first rows of `after`, a batch of `rows` rows, to these slots; other rows are padding."""
        if self.state_bytes:
            scatter_rows(self._units, slots, self._after_units, self._table, rows)

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        self.restore(slot, self._fresh)

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return self._slab[slot, : self.state_bytes].tobytes()

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        self._slab[slot, : self.state_bytes] = np.frombuffer(state, np.uint8)

    def _views(self, arena: Bytes, rows: int) -> list[NDArray[Any]]:
        return [
            arena[start : start + tensor.size * rows].view(tensor.dtype).reshape(tensor.batched(rows))
            for start, tensor in zip(self._arenas, self.tensors, strict=False)
        ]


def _aligned(size: int) -> Bytes:
    whole = np.zeros(size + ALIGNMENT, np.uint8)
    skipped = -whole.ctypes.data % ALIGNMENT
    return whole[skipped : skipped + size]


@entry_point
def gather_rows(slab: Units, slots: NDArray[np.int64], arena: Units, table: NDArray[np.int64]) -> None:
    """Copy the rows of `slots` in slab (capacity, units) to an arena of batched tensors.

    A row of `table` is a tensor: its start in a slot and in the arena, number of pieces, and their length in units.
    """
    rows = len(slots)
    for number in range(len(table)):
        start, first, outer, inner = table[number]
        for row in range(rows):
            slot = slots[row]
            for piece in range(outer):
                here = start + piece * inner
                there = first + (piece * rows + row) * inner
                for at in range(inner):
                    arena[there + at] = slab[slot, here + at]


@entry_point
def scatter_rows(slab: Units, slots: NDArray[np.int64], arena: Units, table: NDArray[np.int64], rows: int) -> None:
    """Copy the first rows of an arena of tensors with `rows` rows to `slots`, the inverse of `gather_rows`."""
    for number in range(len(table)):
        start, first, outer, inner = table[number]
        for row in range(len(slots)):
            slot = slots[row]
            for piece in range(outer):
                here = start + piece * inner
                there = first + (piece * rows + row) * inner
                for at in range(inner):
                    slab[slot, here + at] = arena[there + at]
