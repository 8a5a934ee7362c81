"""Events from the engine to its owner: immutable, made on the model thread, free to be read on any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batching.batcher import StreamId


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """First event of an engine that warms up: seconds of a step by rows, measured while nothing else runs."""

    step_s: Mapping[int, float]


class BatchDone(NamedTuple):
    """One batch ran. Row i of everything belongs to `streams[i]`; times are seconds of the engine's clock.

    A tuple, because it is made for every batch, and in a third of the time that a frozen dataclass takes.
    """

    streams: tuple[StreamId, ...]
    tags: tuple[object, ...]
    """`tag` of each step's `push`."""
    outputs: np.ndarray
    """(rows, …): the model's outputs, in memory that later batches do not write to."""
    queue_wait_s: tuple[float, ...]
    """From a step's push to the start of its batch."""
    started_s: float
    step_s: float
    """From the start of the batch to its outputs in host memory. With a model that is `Overlapped`, the events of the
    batch before were delivered in this time."""
    queued: int
    """Steps still waiting when the batch had been taken."""
    live_wait_s: tuple[float, ...] = ()
    """For the steps of live streams alone, in row order: from a step's due time to the start of the batch; below 0 for
    one that ran ahead of its time."""
    filling_waits: bool = False
    """`Batcher.filling_waits` when the batch was taken."""
    steps: int = 1
    """Steps of each stream, in consecutive rows: a stream of a chunk is that many times in a row in `streams`."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream is lost: its queue and state are gone, and pushes are ignored until its owner closes it.

    `error` is `StepFailed` (the step's own exception is its `__cause__`), `PoolFull`, `QueueFull` or `WrongState`; or
    `UnknownStream` after a command for a stream that is not open.
    """

    stream: StreamId
    error: Exception


@dataclass(frozen=True, slots=True)
class StateExported:
    """A copy of a stream's state after its latest step that a `BatchDone` has answered, for `Engine.restore`."""

    stream: StreamId
    tag: object
    """`tag` of the `export`."""
    state: bytes


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream is closed: its slot is free and no event of this stream follows."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The last event of all, and the end of every stream still open. `error` is None after `stop`."""

    error: BaseException | None


EngineEvent = WarmedUp | BatchDone | StateExported | StreamFailed | StreamClosed | EngineStopped
