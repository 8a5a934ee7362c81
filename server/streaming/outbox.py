"""What waits to be written to one client: in order, bounded, interims first to go. It knows frames and no socket."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

from server.errors import Close
from server.recognition.events import StepTiming


class FrameKind(StrEnum):
    """What a frame carries; an interim is worth nothing once a newer one exists."""

    INTERIM = "interim"
    FINAL = "final"
    OTHER = "other"


class OutFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame to write. `timing` is that of the step which it answers, None for what answers no audio."""

    payload: bytes
    kind: FrameKind
    timing: StepTiming | None = None
    flushed: bool = False  # a final that somebody waits for: a flush or an endpoint


class Outbox:
    """Frames of one connection that its client does not take yet."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: deque[OutFrame | Close] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: OutFrame) -> bool:
        """Append a frame; return False if the client has left so much unread that there is no room for it."""
        if len(self._frames) >= self._limit:
            self._drop_interims()
            if len(self._frames) >= self._limit:
                return False
        self._frames.append(frame)
        return True

    def end(self, close: Close) -> None:
        """Append the end of the connection; there is always room for it."""
        self._frames.append(close)

    def take(self) -> OutFrame | Close:
        """Remove and return the oldest entry. Raises: IndexError if there is none."""
        return self._frames.popleft()

    def _drop_interims(self) -> None:
        kept = [f for f in self._frames if isinstance(f, Close) or f.kind is not FrameKind.INTERIM]
        self.dropped += len(self._frames) - len(kept)
        self._frames = deque(kept)
