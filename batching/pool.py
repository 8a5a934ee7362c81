"""The state pool: owns every stream's state, one row per stream in preallocated slabs. Knows no queue, thread or time.

Merging streams into a batch is a gather of rows, splitting them again is a scatter. A slot is zeroed when it is taken,
never assumed to be clean, and only its present owner's handle gives access to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batching.errors import PoolFull, RepeatedHandle, StaleHandle, WrongState
from batching.step_model import RowSpec


@dataclass(frozen=True, slots=True)
class Handle:
    """Access to one slot, from `take` until `release`; the generation tells this owner from earlier ones."""

    slot: int
    generation: int


class StatePool:
    """Named slabs of `capacity` rows, and one more: the scratch row, always zero, which pads small batches."""

    def __init__(self, spec: Mapping[str, RowSpec], capacity: int, device: torch.device) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._device = device
        self._slabs = {
            name: torch.zeros((capacity + 1, *row.shape), dtype=row.dtype, device=device) for name, row in spec.items()
        }
        # The same memory as bytes, (capacity + 1, row's bytes), for `export` and `restore`.
        self._bytes = [
            slab.flatten().view(torch.uint8).reshape(capacity + 1, -1) for slab in self._slabs.values() if slab.numel()
        ]
        self.row_bytes = sum(rows.shape[1] for rows in self._bytes)
        self._free = list(reversed(range(capacity)))  # a stack: the slot freed last is warm in the caches
        self._generations = [0] * capacity
        self._owners: dict[int, Handle] = {}

    @property
    def capacity(self) -> int:
        """Streams that fit."""
        return self._capacity

    @property
    def slabs(self) -> Mapping[str, Tensor]:
        """Every state by name, (capacity + 1, …): for a model that reads and writes rows itself."""
        return self._slabs

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return len(self._owners)

    def take(self) -> Handle:
        """Claim a slot with fresh (zero) state. Raises: PoolFull."""
        if not self._free:
            raise PoolFull(f"all {self._capacity} slots are taken")
        slot = self._free.pop()
        self._generations[slot] += 1
        handle = self._owners[slot] = Handle(slot, self._generations[slot])
        self.reset(handle)
        return handle

    def release(self, handle: Handle) -> None:
        """Give the slot back. Raises: StaleHandle, also for the second release of one handle."""
        self._check(handle)
        del self._owners[handle.slot]
        self._free.append(handle.slot)

    def reset(self, handle: Handle) -> None:
        """Zero the slot's state: the stream starts afresh. Raises: StaleHandle."""
        self._check(handle)
        for slab in self._slabs.values():
            slab[handle.slot].zero_()

    def export(self, handle: Handle) -> bytes:
        """Return a copy of the slot's whole state, `row_bytes` long, in the order of the spec. Raises: StaleHandle."""
        self._check(handle)
        if self._device.type == "cpu":  # numpy keeps the interpreter's lock for a few kilobytes, torch releases it
            return b"".join([rows.numpy()[handle.slot].tobytes() for rows in self._bytes])
        if not self._bytes:
            return b""
        return torch.cat([rows[handle.slot] for rows in self._bytes]).cpu().numpy().tobytes()  # one copy to the host

    def restore(self, handle: Handle, state: bytes) -> None:
        """Overwrite the slot's state with one exported with the same spec. Raises: StaleHandle, WrongState."""
        self._check(handle)
        if len(state) != self.row_bytes:
            raise WrongState(f"a state of {len(state)} bytes, must be {self.row_bytes}")
        if not state:
            return
        whole = torch.from_numpy(np.frombuffer(bytearray(state), np.uint8)).to(self._device)
        end = 0
        for rows in self._bytes:
            begin, end = end, end + rows.shape[1]
            rows[handle.slot] = whole[begin:end]

    def gather(self, handles: Sequence[Handle], rows: int) -> dict[str, Tensor]:
        """Copy the states of B streams into a batch of `rows` >= B; the rows beyond B are zero.

        Returns: {name: (rows, …)}, fresh tensors. Raises: StaleHandle, RepeatedHandle.
        """
        index = self._to_device(self.index(handles, rows))
        return {name: slab.index_select(0, index) for name, slab in self._slabs.items()}

    def scatter(self, handles: Sequence[Handle], state: Mapping[str, Tensor]) -> None:
        """Copy the first B rows of a batch's state back to their B streams; padding rows are dropped.

        Raises: StaleHandle, RepeatedHandle; KeyError or RuntimeError if `state` is not of the pool's names and shapes.
        """
        index = self._to_device(self.index(handles, len(handles)))
        for name, slab in self._slabs.items():
            slab.index_copy_(0, index, state[name][: len(handles)])

    def index(self, handles: Sequence[Handle], rows: int) -> NDArray[np.int64]:
        """Slab rows of the states of B streams, (rows,) int64; the scratch row for the rows beyond B.

        Raises: StaleHandle, RepeatedHandle.
        """
        if rows < len(handles):
            raise ValueError(f"{len(handles)} streams do not fit in {rows} rows")
        for handle in handles:
            self._check(handle)
        slots = [handle.slot for handle in handles]
        if len(set(slots)) != len(slots):
            raise RepeatedHandle(f"slots of one batch repeat: {slots}")
        slots += [self._capacity] * (rows - len(slots))  # the scratch row, as often as needed
        return np.array(slots, dtype=np.int64)

    def _check(self, handle: Handle) -> None:
        # Identity, not equality: another pool hands out handles that look the same.
        if self._owners.get(handle.slot) is not handle:
            raise StaleHandle(f"slot {handle.slot}, generation {handle.generation} is not held in this pool")

    def _to_device(self, slots: NDArray[np.int64]) -> Tensor:
        index = torch.from_numpy(slots)  # several times faster than torch.tensor(list)
        if self._device.type != "cuda":
            return index
        # Freshly pinned each time: torch's host allocator keeps the block until the copy has run.
        return index.pin_memory().to(self._device, non_blocking=True)
