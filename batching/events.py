"""Events from the engine to its owner: immutable, created on the model thread, readable on any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batching.batcher import StreamId


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """First event of an engine with a warm-up: seconds of a step by rows, measured while nothing else runs."""

    step_s: Mapping[int, float]


class BatchDone(NamedTuple):
    """Results of one batch. Row i of every field belongs to `streams[i]`; times are seconds of the engine's clock.

    A named tuple, because there is one for every batch and a frozen dataclass takes three times as long to create.
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
    """From the start of the batch to its outputs in host memory. With an `Overlapped` model this includes the delivery
    of the previous batch's events."""
    queued: int
    """Steps still waiting when the batch started."""
    live_wait_s: tuple[float, ...] = ()
    """From a step's due time to the start of the batch, for steps of live streams only, in row order; negative for an
    early step."""
    background_waits: bool = False
    """`Batcher.background_waits` when the batch started."""
    steps: int = 1
    """Steps of each stream, in consecutive rows: each stream of a chunk is in `streams` this many times in a row."""
    rows_in_all: int = 0
    """Rows of the whole batch, if rows of other front ends were in it too; 0: all of its rows are in this event."""
    leads: bool = True
    """Whether this event stands for the whole batch in statistics: true for exactly one of a batch's events."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream failed: its queue and state are dropped, and pushes are ignored until its owner closes it.

    `error` is `StepFailed` (the step's own exception is its `__cause__`), `PoolFull`, `QueueFull` or `WrongState`; or
    `UnknownStream` after a command for a stream that is not open.
    """

    stream: StreamId
    error: Exception


@dataclass(frozen=True, slots=True)
class StateExported:
    """Copy of a stream's state after its latest step reported in a `BatchDone`, for `Engine.restore`."""

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
    """The last event: it ends every stream that is still open. `error` is None after `stop`."""

    error: BaseException | None


EngineEvent = WarmedUp | BatchDone | StateExported | StreamFailed | StreamClosed | EngineStopped
