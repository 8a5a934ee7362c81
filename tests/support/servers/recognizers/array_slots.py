"""A pure step over numpy arrays as a `batching.SlotModel`, for test models: their server needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Row = tuple[tuple[int, ...], DTypeLike]
"""Shape and type of one stream's part of an array."""
Array = NDArray[Any]
State = dict[str, Array]


class ArrayModel(Protocol):
    """A model whose step takes (B, …) inputs and states, and returns (B, …) outputs and the next states."""

    @property
    def input_spec(self) -> Row: ...

    @property
    def state_spec(self) -> Mapping[str, Row]: ...

    def step(self, inputs: Array, state: State) -> tuple[Array, State]: ...


def fresh_state(model: ArrayModel, rows: int) -> State:
    """Return the state of this many new streams."""
    return {name: np.zeros((rows, *shape), dtype) for name, (shape, dtype) in model.state_spec.items()}


class ArraySlots:
    """The states of `capacity` streams, zeros at first."""

    def __init__(self, model: ArrayModel, *, capacity: int, largest: int) -> None:
        shape, dtype = model.input_spec
        self.capacity = capacity
        self.inputs: Array = np.zeros((min(largest, capacity), *shape), dtype)
        self._model = model
        self._states = fresh_state(model, capacity)
        self.state_bytes = sum(each[0].nbytes for each in self._states.values())

    def run(self, slots: Sequence[int]) -> Array:
        members = list(slots)
        before = {name: each[members] for name, each in self._states.items()}
        outputs, after = self._model.step(self.inputs[: len(members)], before)
        for name, each in self._states.items():
            each[members] = after[name]
        return outputs

    def reset(self, slot: int) -> None:
        self.restore(slot, bytes(self.state_bytes))

    def export(self, slot: int) -> bytes:
        return b"".join(each[slot].tobytes() for each in self._states.values())

    def restore(self, slot: int, state: bytes) -> None:
        at = 0
        for each in self._states.values():
            size = each[slot].nbytes
            each[slot] = np.frombuffer(state[at : at + size], each.dtype).reshape(each[slot].shape)
            at += size
