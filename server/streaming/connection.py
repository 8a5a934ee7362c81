"""One live WebSocket connection: a thin shell that reads, writes and keeps time around a sans-I/O session.

What the frames mean is a subclass's business: `server.protocols.deepgram.live` is Deepgram's,
`server.protocols.adapter_connection` carries the other protocols.

It is told of messages and of results, and does what they ask for at once: no task runs for a message or for a frame.
Nothing waits for compute: the client is left unread only while its own audio outruns the engine, so that TCP slows it
down. Everything that can last is timed: silence, an engine that stands still, a close that is not answered.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import structlog
from starlette.websockets import WebSocket

from server.audio.decode_queue import DecodeQueue, DecodingPool, LiveDecoder
from server.audio.formats import AudioForm
from server.audio.pcm import PCM
from server.errors import CLOSES, BacklogExceeded, Close, CloseReason, Inflated, MediaError
from server.operations.metrics import Metrics
from server.recognition.events import Closed, Event, Final, Partial, StepTiming, StreamBroken
from server.recognition.recognizer import ActiveSession
from server.recognition.session import Session
from server.recognition.steps import Work
from server.streaming.flow_control import HIGH_WATER, Backpressure, Deadlines, Due, LiveLimits
from server.streaming.outbox import OutFrame, Writer
from server.streaming.transport import transport_of

MIN_TIMER_S = 0.01  # a timer may fire a moment early by another clock; do not spin on the rest

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.live")


class Connection(ABC):
    """Reader, writer and timers of one connection; the `Receiver` of its wire and the `Sink` of its recognition.

    A protocol is a subclass: it reads the client's frames, and says what recognition does in frames of its own.
    """

    protocol: str  # a metric label

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        *,
        limits: LiveLimits,
        metrics: Metrics,
        clock: Callable[[], float],
        request_id: str,
        form: AudioForm,
        decoder: LiveDecoder,
        pool: DecodingPool,
    ) -> None:
        self._wire = transport_of(socket)
        self._session = session
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._request_id = request_id
        self._recognition: ActiveSession | None = None
        self._writer = Writer(self._wire, metrics, clock)
        self._backpressure = Backpressure(limits.max_backlog_s)
        self._held: deque[bytes | str] = deque()  # read before reading stopped: one read of the transport, at most
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: CloseReason | None = None  # set once: why the connection ends
        self._opened_s = clock()
        self._deadlines = Deadlines(limits, self._opened_s)
        self._first_audio_s: float | None = None
        self._said_something = False
        self._ending = False  # the end was asked for: nothing that the client sends now means anything
        self._received_s = metrics.audio_seconds[form.encoding]
        high_s = limits.max_backlog_s * HIGH_WATER
        self._lane = DecodeQueue(
            pool,
            decoder,
            deliver=self._on_samples,
            fail=self._on_bad_audio,
            room=lambda: session.backlog_s <= high_s,
            max_piece_s=limits.max_backlog_s - high_s,
            opened_s=self._opened_s,
        )

    @property
    def backlog_s(self) -> float:
        """Audio received and not yet consumed."""
        return self._session.backlog_s + self._lane.waiting_s

    @property
    def _owed(self) -> bool:
        """Whether audio that was received waits for an answer."""
        return self._session.backlog_s > 0 or self._lane.pending

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection, which `recognition` admitted, to its end."""
        self._recognition = recognition
        _log.info("stream opened", request_id=self._request_id, streams=len(self._session.channels), **self._facts())
        self._opened_s = self._deadlines.heard_s = self._deadlines.progress_s = self._clock()
        self._arm(self._deadlines.wait_s(self._opened_s))
        self._ended = asyncio.get_running_loop().create_future()
        try:
            self._wire.attach(self)
            await self._ended
        finally:
            self._reason = self._reason or CloseReason.CLIENT_GONE
            self._stop_recognition()
            if self._timer is not None:
                self._timer.cancel()
            self._report(self._reason)
            self._lane.release()
            self._recognition = None  # it knows this connection, as the lane did

    def drain(self) -> None:
        """Say what is pending, then close for a restart."""
        self._close(CloseReason.DRAIN)

    def _facts(self) -> dict[str, object]:
        """What else the log should say of it."""
        return {}

    # Client to server

    def on_message(self, message: bytes | str) -> None:
        """Take what the client sent, or keep it while its audio outruns the engine."""
        if self._backpressure.holding:
            self._held.append(message)
        else:
            self._take(message)

    def on_writable(self) -> None:
        """Write what the client did not take before."""
        self._writer.flush()

    def on_gone(self) -> None:
        """Let `run` end."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _take(self, message: bytes | str) -> None:
        self._deadlines.heard_s = self._clock()
        if self._reason is not None or self._ending:
            return  # only the disconnect is awaited
        if isinstance(message, str):
            self._on_text(message)
        else:
            self._on_binary(message)
        if self._reason is None and self._backpressure.rises(self.backlog_s):
            self._wire.pause_reading()

    def _take_held(self) -> None:
        self._deadlines.heard_s = self._clock()  # it was we who did not listen
        while self._held and not self._backpressure.holding:
            self._take(self._held.popleft())
        if not self._backpressure.holding:
            self._wire.resume_reading()

    @abstractmethod
    def _on_text(self, text: str) -> None:
        """Take a text frame."""

    @abstractmethod
    def _on_binary(self, chunk: bytes) -> None:
        """Take a binary frame, maybe an empty one."""

    def _decode(self, chunk: bytes) -> None:
        """Take audio in the form that was announced."""
        heard_s = self._deadlines.heard_s
        if not self._owed:
            self._deadlines.progress_s = heard_s  # nothing was due until now
        try:
            self._lane.audio(chunk, heard_s)
        except BacklogExceeded:
            self._end(CloseReason.TOO_FAST)

    def _on_samples(self, samples: PCM, arrived_s: float) -> None:
        """Take decoded audio, in the order in which it was sent."""
        session = self._session
        try:
            work = session.samples(samples, arrived_s)
        except BacklogExceeded:
            self._end(CloseReason.TOO_FAST)
            return
        if self._first_audio_s is None:
            self._first_audio_s = arrived_s
        self._received_s.inc(len(samples) / session.options.sample_rate)
        self._push(work)

    def _on_bad_audio(self, error: MediaError) -> None:
        if isinstance(error, Inflated):
            self._end(CloseReason.TOO_FAST)
            return
        self._say_undecodable(str(error))
        self._end(CloseReason.BAD_AUDIO)

    @abstractmethod
    def _say_undecodable(self, why: str) -> None:
        """Say that the audio is none, just before the end."""

    # What waits for the audio before it to be decoded

    def _finalize(self, channel: int | None) -> None:
        self._flush(*self._session.finalize(channel, self._clock()))

    def _close(self, reason: CloseReason) -> None:
        if self._reason is not None or self._ending:
            return
        self._ending = True
        now = self._clock()
        if not self._owed:
            self._deadlines.progress_s = now
        self._lane.flush(lambda: self._flush(*self._session.close(reason, self._clock())), now)

    def _flush(self, work: Sequence[Work], events: Sequence[Event]) -> None:
        self._push(work)
        self.on_events(events, None)

    def _push(self, work: Sequence[Work]) -> None:
        if work and self._recognition is not None:
            self._recognition.push(work)

    # Results to client

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take what a step, or a frame of the client, changed."""
        self._deadlines.progress_s = self._clock()
        for event in events:
            if self._reason is None:
                self._say(event, timing)
        self._go_on()

    def _go_on(self) -> None:
        """Read and decode again what waited for room."""
        if self._backpressure.holding and self._backpressure.falls(self.backlog_s):
            self._take_held()
        self._lane.resume()

    @abstractmethod
    def _say(self, event: Event, timing: StepTiming | None) -> None:
        """Say it in the client's terms, then `_end_with` it."""

    def _end_with(self, event: Event) -> None:
        if isinstance(event, Closed):
            self._end(event.reason)
        elif isinstance(event, StreamBroken):
            self._end(CloseReason.BROKEN)

    def _count(self, event: Event) -> None:
        """Count what recognition says, whether the client is told of it or not."""
        if isinstance(event, Partial):
            if event.words and not self._said_something and self._first_audio_s is not None:
                self._said_something = True
                self._metrics.first_interim.observe(self._deadlines.progress_s - self._first_audio_s)
        elif isinstance(event, Final):
            self._metrics.endpoints[event.reason].inc()
            if event.endpoint_delay_s is not None:
                self._metrics.endpoint_delay.observe(event.endpoint_delay_s)

    def _put(self, frame: OutFrame) -> None:
        if not self._writer.put(frame):
            self._cut()

    def _cut(self) -> None:
        """End without a word: this client does not even take what was written already."""
        self._metrics.slow_consumers.inc()
        self._reason = CloseReason.SLOW_CONSUMER
        self._stop_recognition()
        self._wire.abort()

    def _end(self, reason: CloseReason, close: Close | None = None) -> None:
        """Close behind what is already in the outbox; the slots come back now."""
        if self._reason is None:
            self._reason = reason
            self._stop_recognition()
            self._arm(self._limits.write_timeout_s)
            self._writer.end(close or CLOSES[reason])

    def _stop_recognition(self) -> None:
        self._lane.close()
        if self._recognition is not None:
            self._recognition.close()
        self._held.clear()
        if self._backpressure.release():
            self._wire.resume_reading()  # only to learn that the client goes

    # Time

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(seconds, MIN_TIMER_S), self._on_timer)

    def _on_timer(self) -> None:
        """Look what is due. One timer serves idleness, a standstill and the close; a frame does not re-arm it."""
        if self._reason is not None:
            self._wire.abort()  # the close was not taken
            return
        now = self._clock()
        writing_since_s, listening = self._writer.waiting_since(now), not self._backpressure.holding
        due = self._deadlines.due(now, writing_since_s, owed=self._owed, listening=listening)
        if due is Due.CUT:
            self._cut()
        elif due is Due.STALLED:
            self._end(CloseReason.STALLED)
        elif due is Due.IDLE:
            self._close(CloseReason.IDLE)
        elif due is Due.TOO_LONG:
            self._close(CloseReason.TOO_LONG)
        if self._reason is None:
            self._arm(self._deadlines.wait_s(now))

    def _report(self, reason: CloseReason) -> None:
        outcome = CLOSES[reason].outcome
        self._metrics.sessions.labels(self.protocol, outcome).inc()
        self._metrics.session_duration.observe(self._clock() - self._opened_s)
        _log.info(
            "stream closed",
            request_id=self._request_id,
            reason=reason.value,
            audio_s=round(self._session.audio_s, 3),
            steps=self._session.steps,
            worst_latency_ms=round(self._writer.worst_latency_s * 1e3, 1),
            interims_dropped=self._writer.dropped,
        )
