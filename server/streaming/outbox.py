"""Frames to one client: written at once while it reads, else kept in order within a bound, interims dropped first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from server.errors import Close
from server.operations.metrics import Metrics
from server.recognition.events import StepTiming
from server.streaming.transport import Transport


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


OUTBOX_FRAMES = 256  # 20 s of answers to every step


class Writer:
    """One wire, and one outbox for what it does not take."""

    def __init__(self, wire: Transport, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._wire = wire
        self._metrics = metrics
        self._clock = clock
        self._outbox = Outbox(OUTBOX_FRAMES)
        self._waiting_since_s: float | None = None
        self.write_s = 0.0  # of the last result: from its text to the wire
        self.worst_latency_s = 0.0

    @property
    def dropped(self) -> int:
        """Interims that were never written, because the client did not read."""
        return self._outbox.dropped

    def waiting_since(self, now: float) -> float:
        """When the oldest frame that the client is not taking began to wait; `now` if there is none."""
        return now if self._waiting_since_s is None else self._waiting_since_s

    def put(self, frame: OutFrame) -> bool:
        """Write a frame, or queue it behind others; return False if the client has left too much unread."""
        if self._wire.congested or self._outbox:
            self._wait()
            return self._outbox.put(frame)
        self._write(frame)
        return True

    def end(self, close: Close) -> None:
        """Close the connection behind what is queued."""
        self._outbox.end(close)
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the client takes it."""
        while self._outbox and not self._wire.congested:
            entry = self._outbox.take()
            if isinstance(entry, Close):
                self._wire.close(entry.code, entry.reason)
            else:
                self._write(entry)
            self._waiting_since_s = None
        if self._outbox:
            self._wait()

    def _wait(self) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = self._clock()

    def _write(self, frame: OutFrame) -> None:
        self._wire.write(frame.payload)
        kind, timing = frame.kind, frame.timing
        if kind is FrameKind.OTHER:
            return
        self._metrics.results[kind].inc()
        if timing is not None:
            now = self._clock()
            latency_s = now - timing.arrived_s
            self.write_s = now - timing.decoded_s
            self.worst_latency_s = max(self.worst_latency_s, latency_s)
            self._metrics.write.observe(self.write_s)
            self._metrics.result_latency[kind].observe(latency_s)
            if frame.flushed:
                self._metrics.finalize_latency.observe(latency_s)
