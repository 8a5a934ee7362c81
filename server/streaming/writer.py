"""The writing half of one connection: frames go out at once while the client takes them, and wait in order when not.

It has no task: whoever has a frame writes it, and the wire says when the client reads again.
"""

from __future__ import annotations

from collections.abc import Callable

from server.errors import Close
from server.operations.metrics import Metrics
from server.streaming.outbox import FrameKind, Outbox, OutFrame
from server.streaming.transport import Wire

OUTBOX_FRAMES = 256  # 20 s of answers to every step


class Writer:
    """One wire, and one outbox for what it does not take."""

    def __init__(self, wire: Wire, metrics: Metrics, clock: Callable[[], float]) -> None:
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
