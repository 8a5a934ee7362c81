"""Which streams' states are to be told, and behind which of their steps: the engine's list of exports that wait.

Nearly always empty, and cheap then. It counts steps and knows no state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from batching.batcher import StreamId


class Exports:
    """Exports in the order in which they were asked for, by stream, each with the steps that still go before it."""

    def __init__(self) -> None:
        self._waiting: dict[StreamId, deque[tuple[int, object]]] = {}

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def add(self, stream: StreamId, steps: int, tag: object) -> None:
        """Ask for one behind so many of the stream's steps, at least 1, which must be counted from now."""
        self._waiting.setdefault(stream, deque()).append((steps, tag))

    def ran(self, streams: Iterable[StreamId]) -> list[tuple[StreamId, object]]:
        """Count a step of each of these; return the exports that are due now."""
        due: list[tuple[StreamId, object]] = []
        for stream in streams:
            waiting = self._waiting.get(stream)
            if waiting is None:
                continue
            counted = [(steps - 1, tag) for steps, tag in waiting]
            due += [(stream, tag) for steps, tag in counted if not steps]
            left = deque((steps, tag) for steps, tag in counted if steps)
            if left:
                self._waiting[stream] = left
            else:
                del self._waiting[stream]
        return due

    def forget(self, stream: StreamId) -> None:
        """Drop those of a stream that ended."""
        self._waiting.pop(stream, None)
