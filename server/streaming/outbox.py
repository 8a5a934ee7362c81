"""Frames to one client: written at once while it reads, else queued up to a limit; interims are dropped first.

Metrics of the results: time to the first interim, reasons of finals, delays of words, repaired losses. The delay of a
word is the time from the arrival of the audio at its end (as timed by the recognizer) until its message is written to
the socket. In real time it is the audio since the word plus the latency of the step. The true ends of words and the
network delay are measured by `tutti loadtest --ruler word-delay`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import msgspec

from server.audio.formats import Losses
from server.errors import CLOSES, Close, CloseReason
from server.operations.metrics import Metrics
from server.recognition.events import Event, Final, FinalReason, Partial, StepTiming
from server.streaming.transport import Transport


class FrameKind(StrEnum):
    """Content of a frame; an interim is obsolete once a newer one exists."""

    INTERIM = "interim"
    FINAL = "final"
    OTHER = "other"


def kind_of(event: Event) -> tuple[FrameKind, bool]:
    """Return the kind of an event's frame, and its `OutFrame.flushed`."""
    if isinstance(event, Partial):
        return FrameKind.INTERIM, False
    if isinstance(event, Final):
        return FrameKind.FINAL, event.reason is not FinalReason.MAX_LEN
    return FrameKind.OTHER, False


class OutFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame to write. `timing` is that of the step that caused it, None if it was not caused by audio."""

    payload: bytes
    kind: FrameKind = FrameKind.OTHER
    timing: StepTiming | None = None
    flushed: bool = False  # a final caused by a flush or an endpoint: its latency has a separate metric


class Outbox:
    """Bounded queue of frames that the client has not read yet; interims are dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: deque[OutFrame | Close] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: OutFrame) -> bool:
        """Append a frame; return False if the queue is full even without interims."""
        if len(self._frames) >= self._limit:
            self._drop_interims()
            if len(self._frames) >= self._limit:
                return False
        self._frames.append(frame)
        return True

    def end(self, close: Close) -> None:
        """Append the close frame; the limit does not apply to it."""
        self._frames.append(close)

    def take(self) -> OutFrame | Close:
        """Remove and return the oldest entry. Raises: IndexError if the queue is empty."""
        return self._frames.popleft()

    def _drop_interims(self) -> None:
        kept = [f for f in self._frames if isinstance(f, Close) or f.kind is not FrameKind.INTERIM]
        self.dropped += len(self._frames) - len(kept)
        self._frames = deque(kept)


OUTBOX_FRAMES = 256  # 20 s with a result for every step


class Writer:
    """Writer of frames to one transport, with an outbox for those that cannot be written yet."""

    def __init__(self, transport: Transport, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._metrics = metrics
        self._clock = clock
        self._outbox = Outbox(OUTBOX_FRAMES)
        self._waiting_since_s: float | None = None  # None: the outbox is empty
        self.write_s = 0.0  # of the last result: time from its text to the transport
        self.worst_latency_s = 0.0

    def facts(self) -> dict[str, object]:
        """Return fields for the log line of the end: the longest latency, and interims dropped for a slow client."""
        return {"worst_latency_ms": round(self.worst_latency_s * 1e3, 1), "interims_dropped": self._outbox.dropped}

    def waiting_since(self, now: float) -> float:
        """Return the time since which the outbox has been waiting for the client; `now` if it is empty."""
        return now if self._waiting_since_s is None else self._waiting_since_s

    def put(self, frame: OutFrame) -> bool:
        """Write a frame, or queue it after others; return False if the queue is full."""
        if self._waiting_since_s is not None or self._transport.congested:
            self._wait()
            return self._outbox.put(frame)
        self._write(frame)
        return True

    def end(self, close: Close) -> None:
        """Close the connection after the outbox is written."""
        self._outbox.end(close)
        self.flush()

    def flush(self) -> None:
        """Write the outbox as far as the client reads."""
        while self._outbox and not self._transport.congested:
            self._waiting_since_s = None
            entry = self._outbox.take()
            if isinstance(entry, Close):
                self._transport.close(entry.code, entry.reason)
            else:
                self._write(entry)
        if self._outbox:
            self._wait()

    def _wait(self) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = self._clock()

    def _write(self, frame: OutFrame) -> None:
        self._transport.write(frame.payload)
        kind, timing = frame.kind, frame.timing
        if kind is FrameKind.OTHER:
            return
        self._metrics.results[kind].value += 1
        if timing is not None:
            now = self._clock()
            latency_s = now - timing.arrived_s
            self.write_s = now - timing.decoded_s
            self.worst_latency_s = max(self.worst_latency_s, latency_s)
            self._metrics.write.observe(self.write_s)
            self._metrics.result_latency[kind].observe(latency_s)
            if frame.flushed:
                self._metrics.finalize_latency.observe(latency_s)


class WordDelays:
    """Word delays of one connection; a word counts when it is first shown, when it becomes stable, and when it is
    final.
    """

    __slots__ = ("_by_kind", "_clock", "_counted", "_time_to_final")

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._by_kind, self._time_to_final = metrics.word_delay, metrics.time_to_final
        self._clock = clock
        self._counted: dict[int, tuple[int, int]] = {}  # by channel: words of the open segment shown, and stable

    def observe(self, event: Partial | Final, timing: StepTiming) -> None:
        """Count the words that this message shows, marks as stable, or makes final for the first time."""
        shown, stable = self._counted.get(event.channel, (0, 0))
        words, final = event.words, isinstance(event, Final)
        now_stable = len(words) if isinstance(event, Final) else event.stable_words
        if not (final or len(words) > shown or now_stable > stable):
            return
        since_s = event.start_s + event.duration_s + self._clock() - timing.arrived_s
        self._by_kind["shown"].observe_all([since_s - word.end_s for word in words[shown:]])
        if now_stable > stable:
            self._by_kind["stable"].observe_all([since_s - word.end_s for word in words[stable:now_stable]])
        if final and words:
            self._by_kind["final"].observe_all([since_s - word.end_s for word in words])
            self._time_to_final.observe(since_s - words[-1].end_s)
        counted = (0, 0) if final else (max(shown, len(words)), max(stable, now_stable))
        self._counted[event.channel] = counted


class ResultMetrics:
    """Observes the results that one connection sends."""

    __slots__ = ("_clock", "_counted", "_interim_seen", "_metrics", "_word_delays", "first_audio_s")

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics, self._clock = metrics, clock
        self._word_delays = WordDelays(metrics, clock)
        self.first_audio_s: float | None = None  # when the first audio arrived
        self._interim_seen = False
        self._counted = Losses()

    def repaired(self, losses: Losses) -> None:
        """Count the losses that the decoder has repaired since the last call."""
        if losses != self._counted:
            self._metrics.audio_concealed.inc(losses.concealed - self._counted.concealed)
            self._metrics.audio_resyncs.inc(losses.resyncs - self._counted.resyncs)
            self._counted = replace(losses)

    def closed(self, protocol: str, reason: CloseReason, open_s: float) -> None:
        """Count the end of the connection."""
        if reason is CloseReason.SLOW_CONSUMER:
            self._metrics.slow_consumers.inc()
        self._metrics.sessions.labels(protocol, CLOSES[reason].outcome).inc()
        self._metrics.session_duration.observe(open_s)

    def sent(self, event: Event, timing: StepTiming | None) -> None:
        """Observe an event that was sent; `timing` is that of its step, None if it answers no step."""
        if isinstance(event, Final):
            self._metrics.endpoints[event.reason].inc()
            if event.endpoint_delay_s is not None:
                self._metrics.endpoint_delay.observe(event.endpoint_delay_s)
        elif not isinstance(event, Partial):
            return
        elif not self._interim_seen and event.words and self.first_audio_s is not None:
            self._interim_seen = True
            self._metrics.first_interim.observe(self._clock() - self.first_audio_s)
        if timing is not None:
            self._word_delays.observe(event, timing)
