"""The interface of a model that can be batched: states in numbered slots, rows to write inputs into, and one step.

A model satisfies it by structure and never imports it. It owns where the states live, in memory of whatever kind, and
everything that its arithmetic wants: padding, tiles, devices. Nothing here knows what a step means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray


class SlotModel(Protocol):
    """A recurrent model over B streams at a time; each stream's state is in a slot of its own.

    One thread calls it. Of a call, B is the number of slots, and row i of inputs and outputs belongs to `slots[i]`. No
    row's outputs or next state depend on the other rows.
    """

    @property
    def capacity(self) -> int:
        """Number of slots, which are 0 … capacity - 1."""

    @property
    def inputs(self) -> NDArray[Any]:
        """(largest batch, …): rows to write the next inputs into, `capacity` at most; always the same memory."""

    @property
    def state_bytes(self) -> int:
        """Bytes of an exported state."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Advance the streams in B different slots by one step, on the first B rows of `inputs`.

        Returns: (B, …) outputs, in memory that later calls do not write to. Raises: any `Exception` if the step failed;
        the states of these B slots are then undefined, those of the others as before. An error that is not an
        `Exception` says that no further step can run, because the device is lost: it ends the engine.
        """

    def reset(self, slot: int) -> None:
        """Make the slot's state that of a fresh stream."""

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, `state_bytes` long."""

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state with one exported by this model or by another with the same weights."""


@runtime_checkable
class Rehearsed(Protocol):
    """A slot model whose steps do not all cost the same, or whose every batch size need not be prepared.

    It says which sizes are, and runs the most that a step of so many rows can cost, before any slot is taken.
    """

    @property
    def rehearsed_sizes(self) -> Sequence[int]:
        """Batch sizes to be prepared, ascending, the largest batch last."""

    def rehearse(self, rows: int) -> None:
        """Run a batch of so many rows; afterwards the states are undefined. Raises: any error of the model's."""
