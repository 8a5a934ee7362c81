"""Fake clock and models: outputs name their stream and step, and fake times differ from real ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from batching.step_model import TensorSpec

WAIT_S = 20.0  # how long a test waits for something that must happen; only a failing test waits that long


class FakeClock:
    """A clock that stands still until advanced. It starts at a large odd offset, so that real time shows."""

    def __init__(self, start_s: float = 8_675_309.25) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """Return the present time."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


class EchoModel:
    """Answers [the stream's own first input value, steps since its start], int64 (B, 2).

    Both come from the state alone, so a row that reads, keeps or receives another stream's state shows in the output.
    """

    def __init__(self, samples: int = 4, min_rows: int = 1) -> None:
        self.min_rows = min_rows
        self.device = torch.device("cpu")
        self.input_spec = TensorSpec((samples,), torch.int16)
        self.state_spec: Mapping[str, TensorSpec] = {
            "first": TensorSpec((1,), torch.int64),
            "count": TensorSpec((), torch.int64),
        }
        self.rows: list[int] = []  # rows of each call so far

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, samples) int16 -> (B, 2) int64."""
        self.rows.append(len(inputs))
        fresh = state["count"][:, None] == 0  # (B, 1)
        first = torch.where(fresh, inputs[:, :1].long(), state["first"])
        count = state["count"] + 1
        return torch.cat([first, count[:, None]], dim=1), {"first": first, "count": count}


class FailingModel(EchoModel):
    """An `EchoModel` whose step raises when any row's first input is `POISON`."""

    POISON = -666

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """As `EchoModel`. Raises: ArithmeticError for poison."""
        if (inputs[:, 0] == self.POISON).any():
            raise ArithmeticError("poisoned")
        return super().step(inputs, state)


class GatedModel(FailingModel):
    """A model that blocks inside each step until `go_on`, so that a test can act in the middle of a batch."""

    def __init__(self, samples: int = 4, min_rows: int = 1) -> None:
        super().__init__(samples, min_rows)
        self._entered: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._gate = threading.Semaphore(0)

    def wait_inside(self) -> int:
        """Block until the model is inside a step. Returns: its rows."""
        return self._entered.get(timeout=WAIT_S)

    def go_on(self, steps: int = 1) -> None:
        """Let `steps` steps through the gate, the blocked one included."""
        self._gate.release(steps)

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """As `FailingModel`, once the gate opens."""
        self._entered.put(len(inputs))
        if not self._gate.acquire(timeout=WAIT_S):
            raise TimeoutError("the test did not open the gate")
        return super().step(inputs, state)
