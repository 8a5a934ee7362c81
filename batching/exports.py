"""Pending exports of the engine: streams whose state is to be delivered after a number of further steps.

Nearly always empty, and cheap then. It counts steps and holds no state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from batching.batcher import StreamId


class Exports:
    """Exports by stream in order of request, each with the number of steps that still run before it."""

    def __init__(self) -> None:
        self._waiting: dict[StreamId, deque[tuple[int, object]]] = {}

    def __bool__(self) -> bool:
        """True while an export is pending."""
        return bool(self._waiting)

    def add(self, stream: StreamId, steps: int, tag: object) -> None:
        """Add an export that is due after `steps` more of the stream's steps, at least 1."""
        self._waiting.setdefault(stream, deque()).append((steps, tag))

    def ran(self, streams: Iterable[StreamId]) -> list[tuple[StreamId, object]]:
        """Count one step of each stream; return the exports that are due now, (stream, tag)."""
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
        """Drop the exports of a stream that ended."""
        self._waiting.pop(stream, None)
