"""Pool of the slots of a slot model: allocation, and access by handle. Independent of queues, threads and time.

A slot is reset when it is allocated, and only its current owner's handle gives access to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batching.errors import PoolFull, RepeatedHandle, StaleHandle, WrongState
from batching.slot_model import SlotModel


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """Access to one slot from `take` until `release`; the generation distinguishes this owner from earlier ones.

    Compared by identity, because another pool has handles with the same values.
    """

    slot: int
    generation: int


class SlotPool:
    """Allocates the slots of a slot model, and lets only their owners reset, export and restore them."""

    def __init__(self, model: SlotModel) -> None:
        self._model = model
        self._free = list(reversed(range(model.capacity)))  # a stack: the slot freed last is most likely in the cache
        self._generations = [0] * model.capacity
        self._owners: dict[int, Handle] = {}

    @property
    def used(self) -> int:
        """Number of slots in use."""
        return len(self._owners)

    @property
    def free(self) -> int:
        """Number of slots that `take` can allocate."""
        return len(self._free)

    def take(self) -> Handle:
        """Allocate a slot and reset its state. Raises: PoolFull."""
        if not self._free:
            raise PoolFull(f"all {self._model.capacity} slots are in use")
        slot = self._free.pop()
        self._generations[slot] += 1
        handle = self._owners[slot] = Handle(slot, self._generations[slot])
        self._model.reset(slot)
        return handle

    def release(self, handle: Handle) -> None:
        """Free the slot. Raises: StaleHandle, also on a second release of the same handle."""
        del self._owners[self._slot(handle)]
        self._free.append(handle.slot)

    def reset(self, handle: Handle) -> None:
        """Set the slot's state to that of a new stream. Raises: StaleHandle."""
        self._model.reset(self._slot(handle))

    def export(self, handle: Handle) -> bytes:
        """Return a copy of the slot's state. Raises: StaleHandle."""
        return self._model.export(self._slot(handle))

    def restore(self, handle: Handle, state: bytes) -> None:
        """Overwrite the slot's state with an exported one. Raises: StaleHandle, WrongState."""
        slot = self._slot(handle)
        if len(state) != self._model.state_bytes:
            raise WrongState(f"the state has {len(state)} bytes, the model's have {self._model.state_bytes}")
        self._model.restore(slot, state)

    def slots(self, handles: Sequence[Handle]) -> list[int]:
        """Return the slots of a batch, in the order of the handles. Raises: StaleHandle, RepeatedHandle."""
        slots = [handle.slot for handle in handles]
        if list(map(self._owners.get, slots)) != handles:  # one comparison for all
            slots = [self._slot(handle) for handle in handles]  # raises, unless `handles` is another kind of sequence
        if len(set(slots)) != len(slots):
            raise RepeatedHandle(f"a slot appears twice in one batch: {slots}")
        return slots

    def _slot(self, handle: Handle) -> int:
        if self._owners.get(handle.slot) is not handle:
            raise StaleHandle(f"slot {handle.slot}, generation {handle.generation} is not in use in this pool")
        return handle.slot
