"""Fake clock and slot models: outputs contain their stream and step, and fake times differ from real ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WAIT_S = 20.0  # how long a test waits for something that must happen; only a failing test waits that long


class FakeClock:
    """A clock that stands still until advanced. It starts at a large odd offset, so that real time is detected."""

    def __init__(self, start_s: float = 8_675_309.25) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """Return the present time."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self._now_s += seconds


class EchoModel:
    """A slot model in numpy. Answers [the stream's first input value, steps since its start], int64 (B, 2).

    Both come only from the state, so a row with another stream's state is visible in the output.
    """

    state_bytes = 16

    def __init__(self, capacity: int = 4, largest: int = 4, samples: int = 4) -> None:
        self.capacity = capacity
        self.inputs: NDArray[np.int16] = np.zeros((min(largest, capacity), samples), np.int16)
        self.rows: list[int] = []  # rows of each call so far
        self._states = np.full((capacity, 2), -99)  # first value, steps; every slot is used before

    def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """(B, samples) int16 -> (B, 2) int64."""
        return self._advance(slots, 1)

    def _advance(self, slots: Sequence[int], steps: int) -> NDArray[np.int64]:
        """(B * steps, samples) int16 -> (B * steps, 2) int64."""
        rows = len(slots) * steps
        self.rows.append(rows)
        outputs = np.empty((rows, 2), np.int64)
        for step in range(steps):
            states = self._states[list(slots)]  # (B, 2)
            fresh = states[:, 1] == 0
            states[fresh, 0] = self.inputs[step:rows:steps][fresh, 0]
            states[:, 1] += 1
            self._states[list(slots)] = outputs[step::steps] = states
        return outputs

    def reset(self, slot: int) -> None:
        """Zero the slot's state."""
        self._states[slot] = 0

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state."""
        return self._states[slot].tobytes()

    def restore(self, slot: int, state: bytes) -> None:
        """Set the slot's state."""
        self._states[slot] = np.frombuffer(state, np.int64)


class FailingModel(EchoModel):
    """An `EchoModel` whose step raises when any row's first input is `POISON`, once it has written its states."""

    POISON = -666

    def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """As `EchoModel`. Raises: ArithmeticError for poison."""
        outputs = super().run(slots)
        if (self.inputs[: len(slots), 0] == self.POISON).any():
            raise ArithmeticError("poisoned")
        return outputs


class ChunkedModel(EchoModel):
    """An `EchoModel` that takes several steps of each stream in one call."""

    chunk_steps = (1, 2, 4)

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[np.int64]:
        """(B * steps, samples) int16 -> (B * steps, 2) int64."""
        assert steps in self.chunk_steps
        return self._advance(slots, steps)


class OverlappedModel(FailingModel):
    """A `FailingModel` whose steps are in flight between `launch` and `finish`; any other call then is an error.

    A first input of `POISON` fails the step in `finish`, `UNFIT` in `launch`, and `LOST` loses the device in `finish`.
    """

    UNFIT, LOST = -667, -668

    class DeviceLost(BaseException):
        """No further step can run."""

    def __init__(self, capacity: int = 4, largest: int = 4, samples: int = 4) -> None:
        super().__init__(capacity, largest, samples)
        self.in_flight: list[int] | None = None  # slots
        self._steps = 1
        self._launched = self.inputs.copy()

    def launch(self, slots: Sequence[int], steps: int = 1) -> None:
        """Start a step. Raises: ValueError for `UNFIT`."""
        self._idle()
        if (self.inputs[: len(slots) * steps, 0] == self.UNFIT).any():
            raise ValueError("unfit")
        self.in_flight, self._steps = list(slots), steps
        self._launched = self.inputs.copy()

    def finish(self) -> NDArray[np.int64]:
        """As `FailingModel.run`, or `ChunkedModel.run`. Raises: as that; DeviceLost."""
        assert self.in_flight is not None
        slots, self.in_flight = self.in_flight, None
        assert np.array_equal(self._launched, self.inputs), "inputs were written while a step was in flight"
        outputs = self._advance(slots, self._steps)
        firsts = self.inputs[: len(outputs), 0]
        if (firsts == self.LOST).any():
            raise self.DeviceLost
        if (firsts == self.POISON).any():
            raise ArithmeticError("poisoned")
        return outputs

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[np.int64]:
        """As `launch` and `finish`."""
        self.launch(slots, steps)
        return self.finish()

    def reset(self, slot: int) -> None:
        """As `EchoModel`."""
        self._idle()
        super().reset(slot)

    def export(self, slot: int) -> bytes:
        """As `EchoModel`."""
        self._idle()
        return super().export(slot)

    def restore(self, slot: int, state: bytes) -> None:
        """As `EchoModel`."""
        self._idle()
        super().restore(slot, state)

    def _idle(self) -> None:
        assert self.in_flight is None, "a step is in flight"


class OverlappedChunksModel(OverlappedModel):
    """An `OverlappedModel` that is a `ChunkedModel`, too."""

    chunk_steps = (1, 2, 4)


class GatedModel(FailingModel):
    """A model that blocks inside each step until `go_on`, so that a test can act in the middle of a batch."""

    def __init__(self, capacity: int = 4, largest: int = 4, samples: int = 4) -> None:
        super().__init__(capacity, largest, samples)
        self._entered: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._gate = threading.Semaphore(0)

    def wait_inside(self) -> int:
        """Block until the model is inside a step. Returns: its rows."""
        return self._entered.get(timeout=WAIT_S)

    def go_on(self, steps: int = 1) -> None:
        """Let `steps` steps pass the gate, including the blocked one."""
        self._gate.release(steps)

    def run(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """As `FailingModel`, once the gate opens."""
        self._entered.put(len(slots))
        if not self._gate.acquire(timeout=WAIT_S):
            raise TimeoutError("the test did not open the gate")
        return super().run(slots)
