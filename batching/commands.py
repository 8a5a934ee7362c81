"""What other threads ask of the engine: immutable messages in its one queue, carried out in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batching.batcher import StreamId


@dataclass(frozen=True, slots=True)
class Open:
    """Admit a stream."""

    stream: StreamId
    budget_s: float
    background: bool


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Queue one step; `ready_s` is the time of the push, so that queue wait includes the wait in the engine's queue."""

    stream: StreamId
    inputs: np.ndarray
    tag: object
    reset: bool
    ready_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Forget a stream."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


Command = Open | Step | Close | Stop
