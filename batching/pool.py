"""The slot pool: which stream has which slot of the slot model. Knows no queue, thread or time, and no states.

A slot is reset when it is taken, never assumed to be clean, and only its present owner's handle gives access to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batching.errors import PoolFull, RepeatedHandle, StaleHandle, WrongState
from batching.slot_model import SlotModel


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """Access to one slot, from `take` until `release`; the generation tells this owner from earlier ones.

    Equal to itself alone: another pool hands out handles that look the same.
    """

    slot: int
    generation: int


class SlotPool:
    """Hands out the slots of a slot model, and lets their owners alone reset, export and restore them."""

    def __init__(self, model: SlotModel) -> None:
        self._model = model
        self._free = list(reversed(range(model.capacity)))  # a stack: the slot freed last is warm in the caches
        self._generations = [0] * model.capacity
        self._owners: dict[int, Handle] = {}

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return len(self._owners)

    def take(self) -> Handle:
        """Claim a slot with fresh state. Raises: PoolFull."""
        if not self._free:
            raise PoolFull(f"all {self._model.capacity} slots are taken")
        slot = self._free.pop()
        self._generations[slot] += 1
        handle = self._owners[slot] = Handle(slot, self._generations[slot])
        self._model.reset(slot)
        return handle

    def release(self, handle: Handle) -> None:
        """Give the slot back. Raises: StaleHandle, also for the second release of one handle."""
        del self._owners[self._slot(handle)]
        self._free.append(handle.slot)

    def reset(self, handle: Handle) -> None:
        """Make the slot's state fresh: the stream starts anew. Raises: StaleHandle."""
        self._model.reset(self._slot(handle))

    def export(self, handle: Handle) -> bytes:
        """Return a copy of the slot's whole state. Raises: StaleHandle."""
        return self._model.export(self._slot(handle))

    def restore(self, handle: Handle, state: bytes) -> None:
        """Overwrite the slot's state with an exported one. Raises: StaleHandle, WrongState."""
        slot = self._slot(handle)
        if len(state) != self._model.state_bytes:
            raise WrongState(f"a state of {len(state)} bytes, must be {self._model.state_bytes}")
        self._model.restore(slot, state)

    def slots(self, handles: Sequence[Handle]) -> list[int]:
        """Return the slots of a batch, in the order of the handles. Raises: StaleHandle, RepeatedHandle."""
        slots = [handle.slot for handle in handles]
        if list(map(self._owners.get, slots)) != handles:  # one comparison for all
            slots = [self._slot(handle) for handle in handles]  # raises, unless `handles` is no list
        if len(set(slots)) != len(slots):
            raise RepeatedHandle(f"slots of one batch repeat: {slots}")
        return slots

    def _slot(self, handle: Handle) -> int:
        if self._owners.get(handle.slot) is not handle:
            raise StaleHandle(f"slot {handle.slot}, generation {handle.generation} is not held in this pool")
        return handle.slot
