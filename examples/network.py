"""Recurrent networks in numpy whose rows do not depend on their batch, with one slot per stream.

The terms of a float product are added in an order that depends on the number of rows, and then the last bits of a row
depend on its batch. Here the factors are small integers stored as float32: every partial sum is an integer below 2**24,
which float32 represents exactly, so any order gives the same bits. Everything else is computed element by element.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import load_file, save_file

Floats = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]
Step = Callable[[NDArray[Any], Floats], tuple[NDArray[Any], Floats]]
"""step(inputs (B, …), states (B, N)) -> outputs (B, …), next states (B, N)"""

SCALE = 2 / 255
"""Unit of a quantized number: 255 values within ±1, as in the recurrent language model of `examples/weights`."""
LOWEST, HIGHEST = -128, 127
EXACT = 2**24  # float32 represents every integer below it
CACHE = Path(__file__).parents[1] / "build" / "examples"


def quantized(x: Floats) -> Floats:
    """Round numbers within ±1 to integers of -128 to 127; larger ones are clipped."""
    integers: Floats = np.clip(np.rint(x / np.float32(SCALE)), LOWEST, HIGHEST)
    return integers


def sigmoid(x: Floats) -> Floats:
    """Logistic function by the hyperbolic tangent, which does not overflow."""
    half = np.float32(0.5)
    y: Floats = half + half * np.tanh(half * x)
    return y


class Product:
    """A linear layer for quantized inputs, with 8-bit weights."""

    def __init__(self, weights: NDArray[Any], scale: NDArray[Any], bias: NDArray[Any]) -> None:
        """Take integers (N, K), and of each output its scale and bias (N,). Raises: ValueError for inexact sums."""
        largest = int(np.abs(weights.astype(np.int64)).sum(axis=1).max()) * -LOWEST
        if largest >= EXACT:
            advice = "use fewer inputs or smaller weights"
            raise ValueError(f"sums of products can reach {largest}, not below {EXACT}: {advice}")
        self._weights = np.ascontiguousarray(weights.T, np.float32)  # (K, N)
        self._scale = (scale * SCALE).astype(np.float32)
        self._bias = bias.astype(np.float32) + np.float32(0)  # no negative zero, so that zero sums have one sign

    @classmethod
    def of(cls, weights: Floats, bias: Floats) -> Product:
        """Round float weights (N, K) to integers of -127 to 127, with one scale per output."""
        scale = np.maximum(np.abs(weights).max(axis=1), 1e-9) / HIGHEST  # (N,)
        return cls(np.rint(weights / scale[:, None]), scale, bias)

    def __call__(self, x: Floats) -> Floats:
        """(B, K) quantized -> (B, N)."""
        return (x @ self._weights) * self._scale + self._bias


def gru(inputs: Floats, recurrent: Floats, hidden: Floats) -> Floats:
    """Next hidden state (B, H) of a GRU from both products (B, 3 H): reset, update, candidate, as in torch."""
    (reset, update, candidate), (again, keep, before) = np.split(inputs, 3, axis=1), np.split(recurrent, 3, axis=1)
    new = np.tanh(candidate + sigmoid(reset + again) * before)
    after: Floats = new + sigmoid(update + keep) * (hidden - new)
    return after


def lstm(gates: Floats, cell: Floats) -> tuple[Floats, Floats]:
    """Next hidden state and cell (B, H) of an LSTM from the sum of both products (B, 4 H), in torch's order."""
    enter, forget, candidate, leave = np.split(gates, 4, axis=1)
    after = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
    return sigmoid(leave) * np.tanh(after), after


class Slots:
    """A `batching.SlotModel`: states of `capacity` streams, zeros at first, and a step function over arrays."""

    def __init__(
        self, step: Step, *, state: int, inputs: tuple[int, ...], dtype: DTypeLike, capacity: int, largest: int
    ) -> None:
        """Allocate memory. `state`: numbers in a state; `inputs`, `dtype`: shape and type of one stream's input."""
        self.capacity = capacity
        self.inputs: NDArray[Any] = np.zeros((min(largest, capacity), *inputs), dtype)
        self._step = step
        self._states = np.zeros((capacity, state), np.float32)
        self.state_bytes = self._states[0].nbytes

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Gather the states of a batch, step it, and scatter them. Returns: (B, …) outputs."""
        members = list(slots)
        outputs, self._states[members] = self._step(self.inputs[: len(members)], self._states[members])
        return outputs

    def reset(self, slot: int) -> None:
        """Zero the slot's state."""
        self._states[slot] = 0

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state."""
        state: bytes = self._states[slot].tobytes()
        return state

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state."""
        self._states[slot] = np.frombuffer(state, np.float32)


def cached(name: str, train: Callable[[], Arrays]) -> Arrays:
    """Weights from `build/examples`; train and store them first if they are not there. Delete the file to retrain."""
    path = CACHE / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        save_file(dict(train()), unfinished)
        unfinished.replace(path)
    arrays: Arrays = load_file(path)
    return arrays


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: a second one costs networks of this size more than it gains."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
