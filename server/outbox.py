"""What waits to be written to one client: in order, bounded, interims first to go. It knows frames and no socket."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from server.errors import Close


class FrameKind(StrEnum):
    """What a frame carries; an interim is worth nothing once a newer one exists."""

    INTERIM = "interim"
    FINAL = "final"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OutFrame:
    """A frame to write. `arrived_s` is when the last audio that it needs arrived, None for what answers no audio."""

    payload: bytes
    kind: FrameKind
    arrived_s: float | None = None
    flushed: bool = False  # a final that somebody waits for: a flush or an endpoint


class Outbox:
    """Frames of one connection between the results and the writer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: deque[OutFrame | Close] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.dropped = 0

    def put(self, frame: OutFrame) -> bool:
        """Append a frame; return False if the client has left so much unread that there is no room for it."""
        if len(self._frames) >= self._limit:
            self._drop_interims()
            if len(self._frames) >= self._limit:
                return False
        self._append(frame)
        return True

    def end(self, close: Close) -> None:
        """Append the end of the connection; there is always room for it."""
        self._append(close)

    async def next(self) -> OutFrame | Close:
        """Return the oldest frame, when there is one. For one reader only."""
        if not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._frames.popleft()

    def _append(self, frame: OutFrame | Close) -> None:
        self._frames.append(frame)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _drop_interims(self) -> None:
        kept = [f for f in self._frames if isinstance(f, Close) or f.kind is not FrameKind.INTERIM]
        self.dropped += len(self._frames) - len(kept)
        self._frames = deque(kept)
