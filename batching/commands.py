"""Commands to the engine from other threads: immutable messages in its one queue, executed in order.

`Step` is a tuple, not a frozen dataclass: there is one for each step of each stream, and a tuple takes a third of the
time to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batching.batcher import StreamId


@dataclass(frozen=True, slots=True)
class Open:
    """Admit a stream."""

    stream: StreamId
    budget_s: float
    background: bool


class Step(NamedTuple):
    """Queue one step; `ready_s` is the time of the push, so that queue wait includes the wait in the engine's queue."""

    stream: StreamId
    inputs: np.ndarray
    tag: object
    reset: bool
    ready_s: float


@dataclass(frozen=True, slots=True)
class Export:
    """Deliver a stream's state as it is after the steps that were pushed before this."""

    stream: StreamId
    tag: object


@dataclass(frozen=True, slots=True)
class Restore:
    """Set a stream's state, for the steps that are pushed after this, to one that was exported."""

    stream: StreamId
    state: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


Command = Open | Step | Export | Restore | Close | Stop
