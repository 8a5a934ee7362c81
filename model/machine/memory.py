"""Memory of compiled code: aligned bytes, arrays that stay at their address, and the layout of work space."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.machine.compiled import ZERO, entry_point, int64_at

ALIGNED = 64  # bytes, a cache line


def aligned(size: int) -> NDArray[np.uint8]:
    """Return zeroed bytes aligned to a cache line."""
    memory = np.zeros(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]


def whole_lines(size: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return -(-size // ALIGNED) * ALIGNED


def mapped(size: int) -> NDArray[np.uint8]:
    """Return zeroed bytes whose pages take memory once they are written. Raises: MemoryError."""
    try:
        pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    return np.frombuffer(pages, np.uint8)[:size]


def offsets_of(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the aligned offset of each part of a memory, by name, and the size of the whole, in bytes."""
    offsets, total = {}, 0
    for name, size in sizes.items():
        offsets[name], total = total, total + whole_lines(size)
    return offsets, total


class KeptArrays:
    """Copies of arrays at addresses that compiled code is given; they exist as long as this object."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.uint8]] = []

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(each.nbytes for each in self._kept)

    def keep(self, array: NDArray[Any]) -> int:
        """Copy an array; return the address of the copy."""
        place = aligned(array.nbytes)
        place[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self._kept.append(place)
        return int(place.ctypes.data)


class CompiledStates:
    """States of all streams: (capacity, stride) bytes, each that of a new stream at first."""

    def __init__(self, fresh: NDArray[np.uint8], *, capacity: int) -> None:
        """`fresh`: state of a new stream. Raises: MemoryError."""
        self.state_bytes = len(fresh)
        self.stride = whole_lines(len(fresh))
        self.slab = mapped(capacity * self.stride).reshape(capacity, self.stride)
        self._fresh = fresh
        written = len(np.trim_zeros(fresh, "b"))
        self.slab[:, :written] = fresh[:written]  # the rest is zero, and takes no memory before a stream has the slot

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        self.slab[slot, : self.state_bytes] = self._fresh

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return self.slab[slot, : self.state_bytes].tobytes()

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        self.slab[slot, : self.state_bytes] = np.frombuffer(state, np.uint8)


@entry_point
def follow(chain: int, reads: int) -> int:
    """Read `reads` times from the 64-bit integers at `chain`, each the index of the next; return the last one."""
    indices, at = int64_at(chain), ZERO
    for _ in range(reads):
        at = indices[at]
    return int(at)
