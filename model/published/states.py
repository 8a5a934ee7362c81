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
from model.machine.memory import CompiledStates, aligned, whole_lines

Bytes = NDArray[np.uint8]
Units = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a stream's state: its shape without the batch axis, and the position `axis` of that."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int = 0

    @property
    def size(self) -> int:
        """Size for one stream in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def outer(self) -> int:
        """Number of pieces before the batch axis."""
        return math.prod(self.shape[: self.axis])

    def batched(self, rows: int) -> tuple[int, ...]:
        """Return the shape for a batch of this many rows."""
        return (*self.shape[: self.axis], rows, *self.shape[self.axis :])


class SlotStates(CompiledStates):
    """The slots: a row of bytes for each stream, zeros at first."""

    def __init__(self, tensors: Sequence[StateTensor], *, capacity: int) -> None:
        self.tensors = tuple(tensors)
        sizes = [tensor.size for tensor in self.tensors]
        self.starts = np.cumsum([0, *sizes]).tolist()
        super().__init__(np.zeros(int(self.starts[-1]), np.uint8), capacity=capacity)
        pieces = [tensor.size // max(1, tensor.outer) for tensor in self.tensors]
        unit = np.dtype(f"u{math.gcd(8, *self.starts, *pieces)}")  # unit of copies
        self.units: Units = self.slab.view(unit)

    def batched(self, largest: int) -> BatchedStates:
        """Return batched tensors for at most this many of the slots; each thread needs its own."""
        return BatchedStates(self, largest=largest)


class BatchedStates:
    """Two sets of batched tensors for slots: gathered states `before` a step, and states `after` it to scatter."""

    def __init__(self, slots: SlotStates, *, largest: int) -> None:
        self._slots, self.tensors = slots, slots.tensors
        sizes = [tensor.size for tensor in self.tensors]
        self._arenas = np.cumsum([0, *(whole_lines(size * largest) for size in sizes)]).tolist()
        self._before, self._after = (aligned(int(self._arenas[-1])) for _ in range(2))
        unit = slots.units.dtype
        self._before_units, self._after_units = self._before.view(unit), self._after.view(unit)
        table = [
            (
                start // unit.itemsize,
                arena // unit.itemsize,
                tensor.outer,
                tensor.size // max(1, tensor.outer) // unit.itemsize,
            )
            for tensor, start, arena in zip(self.tensors, slots.starts[:-1], self._arenas[:-1], strict=True)
        ]
        self._table = np.array(table, np.int64).reshape(-1, 4)

    def before(self, rows: int) -> list[NDArray[Any]]:
        """Tensors for a batch of this many rows, filled by `gather`; always the same memory."""
        return self._views(self._before, rows)

    def after(self, rows: int) -> list[NDArray[Any]]:
        """Tensors for a batch of this many rows, read by `scatter`; always the same memory."""
        return self._views(self._after, rows)

    def gather(self, slots: NDArray[np.int64]) -> None:
        """Copy the states of these slots into `before`."""
        if self._slots.state_bytes:
            gather_rows(self._slots.units, slots, self._before_units, self._table)

    def scatter(self, slots: NDArray[np.int64], rows: int) -> None:
        """Copy the first rows of `after`, a batch of `rows` rows, to these slots; other rows are padding."""
        if self._slots.state_bytes:
            scatter_rows(self._slots.units, slots, self._after_units, self._table, rows)

    def _views(self, arena: Bytes, rows: int) -> list[NDArray[Any]]:
        return [
            arena[start : start + tensor.size * rows].view(tensor.dtype).reshape(tensor.batched(rows))
            for start, tensor in zip(self._arenas, self.tensors, strict=False)
        ]


@entry_point
def gather_rows(slab: Units, slots: NDArray[np.int64], arena: Units, table: NDArray[np.int64]) -> None:
    """Copy the rows of `slots` in slab (capacity, units) to an arena of batched tensors.

    A row of `table` is a tensor: its start in a slot and in the arena, number of pieces, their length in units.
    """
    rows = len(slots)
    for number in range(len(table)):
        start, first, outer, inner = table[number]
        for row in range(rows):
            slot = slots[row]
            for piece in range(outer):
                source = start + piece * inner
                target = first + (piece * rows + row) * inner
                for at in range(inner):
                    arena[target + at] = slab[slot, source + at]


@entry_point
def scatter_rows(slab: Units, slots: NDArray[np.int64], arena: Units, table: NDArray[np.int64], rows: int) -> None:
    """Copy the first rows of an arena of tensors with `rows` rows to `slots`, the inverse of `gather_rows`."""
    for number in range(len(table)):
        start, first, outer, inner = table[number]
        for row in range(len(slots)):
            slot = slots[row]
            for piece in range(outer):
                target = start + piece * inner
                source = first + (piece * rows + row) * inner
                for at in range(inner):
                    slab[slot, target + at] = arena[source + at]
