"""Interface of an engine for recognition: calls that queue commands, and events that answer them.

`Engine` implements it with a thread of this process. All arguments and events are immutable, so an engine can also run
in another process.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from batching.batcher import StreamId


class EngineClient(Protocol):
    """Interface of an engine for sessions. The function that receives every event, in order, is passed at construction.

    The calls of a stream: `open`, any number of `push`, exactly one `close`, also after a failure. No call waits for
    the engine, except `stop`.
    """

    @property
    def alive(self) -> bool:
        """Whether the engine is running."""

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the engine; None while it runs, and after `stop`."""

    @property
    def state_bytes(self) -> int:
        """Size of an exported state in bytes."""

    def busy_since(self) -> float | None:
        """Clock time at which the engine began its present work; None while it has none."""

    def start(self) -> None:
        """Start the engine. Can be called only once."""

    def stop(self, timeout_s: float) -> None:
        """End the engine and drop waiting steps. Raises: EngineDown if it does not end."""

    def open(self, *, budget_s: float = 0.1, background: bool = False) -> StreamId:
        """Open a stream whose steps should be answered within `budget_s` of their due time; ids are never reused.

        Raises: EngineDown; QueueFull if the engine hangs.
        """

    def push(self, stream: StreamId, inputs: np.ndarray, *, tag: object = None, reset: bool = False) -> None:
        """Queue one step, ready now. `reset`: reset the stream's state first. `tag`: returned with the answer.

        Raises: WrongInput; QueueFull if the engine hangs.
        """

    def export(self, stream: StreamId, tag: object = None) -> None:
        """Request the state after the steps pushed so far, for `StateExported`. Raises: QueueFull."""

    def restore(self, stream: StreamId, state: bytes) -> None:
        """Set the stream's state to an exported one, for the steps pushed from now on.

        Raises: WrongState; QueueFull if the engine hangs.
        """

    def acknowledge(self) -> None:
        """Acknowledge one `BatchDone`; call it where the events are received."""

    def close(self, stream: StreamId) -> None:
        """Close a stream: drop its waiting steps, free its slot and deliver `StreamClosed`."""
