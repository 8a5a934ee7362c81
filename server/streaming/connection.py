"""One live WebSocket connection: reads, writes and keeps time around a sans-I/O session.

A subclass knows a protocol: `server.protocols.deepgram.live` Deepgram's, `server.protocols.adapter_connection` those of
adapters. How a connection ends is the table of `server.streaming.closing`.

Messages and results are handled when they come: no task runs for either. Nothing waits for compute: the client is left
unread only while its own audio outruns the engine, so that TCP slows it down. Every wait has a time limit: for a silent
client, an engine that stands still, a client that does not read, a close that is not answered.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from starlette.websockets import WebSocket

from server.audio.decode_queue import DecodeQueue, DecodingPool, LiveDecoder
from server.audio.formats import Encoding
from server.audio.pcm import PCM
from server.errors import CLOSES, BacklogExceeded, Close, CloseReason, MediaError
from server.operations.metrics import Metrics
from server.recognition.active_session import ActiveSession
from server.recognition.events import Closed, Event, Final, Partial, StepTiming, StreamBroken
from server.recognition.session import Session
from server.recognition.steps import Work
from server.streaming.closing import ConnectionEvent, State, next_state
from server.streaming.flow_control import Backpressure, Deadlines, LiveLimits
from server.streaming.outbox import OutFrame, Writer
from server.streaming.transport import transport_of

MIN_TIMER_S = 0.01  # a timer may fire a moment early by another clock; do not spin on the rest

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.live")


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The parts of a replica that its connections share."""

    limits: LiveLimits
    metrics: Metrics
    clock: Callable[[], float]
    pool: DecodingPool


class Connection(ABC):
    """Receives the messages of its transport, the samples of its decode queue and the events of its recognition."""

    protocol: str  # a metric label

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        context: ConnectionContext,
        *,
        request_id: str,
        encoding: Encoding,
        decoder: LiveDecoder | None,
    ) -> None:
        """`encoding` is a metric label; `decoder` is None where the protocol decodes the audio itself."""
        limits, self._clock = context.limits, context.clock
        self._transport = transport_of(socket)
        self._session = session
        self._limits = limits
        self._metrics = context.metrics
        self._request_id = request_id
        self._recognition: ActiveSession | None = None
        self._state = State.OPENING
        self._reason: CloseReason | None = None  # recorded once: when results no longer go out
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opened_s = self._clock()
        self._deadlines = Deadlines(limits, self._opened_s)
        self._writer = Writer(self._transport, context.metrics, self._clock)
        self._backpressure = Backpressure(limits.max_backlog_s)
        self._unread: deque[bytes | str] = deque()  # messages that came while reading had stopped: one read at most
        max_piece_s = limits.max_backlog_s - self._backpressure.high_s
        self._decode_queue = DecodeQueue(context.pool, decoder, max_piece_s=max_piece_s, opened_s=self._opened_s)
        self._received_audio_s = context.metrics.audio_seconds[encoding]
        self._first_audio_s: float | None = None
        self._interim_seen = False

    @property
    def backlog_s(self) -> float:
        """Audio received and not yet answered."""
        return self._session.backlog_s + self._decode_queue.waiting_s

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection, which `recognition` admitted, to its end."""
        self._recognition = recognition
        _log.info("stream opened", request_id=self._request_id, streams=len(self._session.channels), **self._facts())
        self._opened_s = self._deadlines.heard_s = self._deadlines.progress_s = self._clock()
        self._arm(self._deadlines.wait_s(self._opened_s))
        self._ended = asyncio.get_running_loop().create_future()
        self._decode_queue.receiver = self
        self._transition(ConnectionEvent.ATTACHED)
        if not self._state.sends:
            recognition.close()  # a drain came first
        try:
            self._transport.attach(self)
            await self._ended
        finally:
            self._transition(ConnectionEvent.SOCKET_GONE)
            self._report()
            self._decode_queue.release()
            self._recognition = None  # it refers to this connection, as the decode queue did

    def drain(self) -> None:
        """Complete the text, then close for a restart."""
        self._transition(ConnectionEvent.SERVER_DRAINS)

    def _facts(self) -> dict[str, object]:
        """Further fields of the log line of an opened stream."""
        return {}

    # The end

    def _transition(
        self, event: ConnectionEvent, reason: CloseReason | None = None, close: Close | None = None
    ) -> bool:
        """Go to the state that follows, and do what entering it demands; return whether it is another one.

        `reason` and `close` replace the event's own reason and that reason's close frame.
        """
        before = self._state
        self._state = state = next_state(before, event)
        if state is before:
            return False
        reason = reason or event.reason
        if before.sends and not state.sends:
            self._reason = reason
            self._stop_recognition()
        if state is State.FLUSHING:
            assert reason is not None
            self._flush_and_end(reason)
        elif state is State.CLOSING:
            assert reason is not None
            self._arm(self._limits.write_timeout_s)
            self._writer.end(close or CLOSES[reason])
        elif state is State.CUT:
            self._transport.abort()
        elif state is State.GONE:
            self._cancel_timer()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)
        return True

    def _stop_recognition(self) -> None:
        """Give the slots back now, and drop the audio that waits."""
        self._decode_queue.close()
        if self._recognition is not None:
            self._recognition.close()
        self._unread.clear()
        if self._backpressure.release():
            self._transport.resume_reading()  # only to learn that the client goes

    def _report(self) -> None:
        assert self._reason is not None, "recorded on the way to the last state"
        if self._reason is CloseReason.SLOW_CONSUMER:
            self._metrics.slow_consumers.inc()
        self._metrics.sessions.labels(self.protocol, CLOSES[self._reason].outcome).inc()
        self._metrics.session_duration.observe(self._clock() - self._opened_s)
        _log.info(
            "stream closed",
            request_id=self._request_id,
            reason=self._reason.value,
            audio_s=round(self._session.audio_s, 3),
            steps=self._session.steps,
            worst_latency_ms=round(self._writer.worst_latency_s * 1e3, 1),
            interims_dropped=self._writer.dropped,
        )

    # Messages

    def on_message(self, message: bytes | str) -> None:
        """Take a message, or keep it while the client's audio outruns the engine."""
        if self._backpressure.holding:
            self._unread.append(message)
            return
        now = self._deadlines.heard_s = self._clock()
        if not self._state.reads:
            return  # only the disconnect is awaited
        if not self._answer_due:
            self._deadlines.progress_s = now
        if isinstance(message, str):
            self._on_text(message)
        else:
            self._on_binary(message)
        if self._state.reads and self._backpressure.rises(self.backlog_s, self._decode_queue.fill):
            self._transport.pause_reading()

    def on_writable(self) -> None:
        """Write what the client did not take before."""
        self._writer.flush()

    def on_gone(self) -> None:
        """Let `run` end."""
        self._transition(ConnectionEvent.SOCKET_GONE)

    @abstractmethod
    def _on_text(self, text: str) -> None:
        """Take a text frame."""

    @abstractmethod
    def _on_binary(self, chunk: bytes) -> None:
        """Take a binary frame, maybe an empty one."""

    # Audio

    @property
    def has_room(self) -> bool:
        """Whether the engine keeps up with the audio that is decoded already."""
        return self._session.backlog_s <= self._backpressure.high_s

    def on_samples(self, samples: PCM, arrived_s: float) -> None:
        """Take decoded audio, (S, C) int16, in the order in which it was sent; cut it into steps for the engine."""
        session = self._session
        try:
            work = session.samples(samples, arrived_s)
        except BacklogExceeded:
            self._transition(ConnectionEvent.TOO_FAST)
            return
        if self._first_audio_s is None:
            self._first_audio_s = arrived_s
        self._received_audio_s.inc(len(samples) / session.options.sample_rate)
        self._push(work)

    def on_progress(self) -> None:
        """Read on if undecoded bytes were what reading waited for: they may have held no audio, and bring no answer."""
        if not self._session.backlog_s:  # else it is the engine that owes an answer
            self._deadlines.progress_s = self._clock()
        self._read_on_if_low()

    def on_bad_audio(self, error: MediaError) -> None:
        """End the connection, whose audio cannot be decoded."""
        del error  # for protocols that can say it
        self._transition(ConnectionEvent.BAD_AUDIO)

    def _finalize(self, channel: int | None) -> None:
        """Complete the text of the audio sent so far, of one channel or of all; the stream goes on."""
        session, now = self._session, self._deadlines.heard_s
        self._decode_queue.drain(lambda: self._push_and_say(*session.finalize(channel, self._clock())), now)

    def _flush_and_end(self, reason: CloseReason) -> None:
        """Complete the text of all audio and close the session: its last event is `Closed`."""
        session, now = self._session, self._clock()
        if not self._answer_due:
            self._deadlines.progress_s = now
        self._decode_queue.flush(lambda: self._push_and_say(*session.close(reason, self._clock())), now)

    def _push_and_say(self, work: Sequence[Work], events: Sequence[Event]) -> None:
        self._push(work)
        self.on_events(events, None)

    def _push(self, work: Sequence[Work]) -> None:
        if work:
            assert self._recognition is not None, "audio comes while it runs"
            self._recognition.push(work)

    # Results

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take the events of a step, or of a client's frame."""
        self._deadlines.progress_s = self._clock()
        for event in events:
            if self._state.sends:
                self._say(event, timing)
                self._count(event)
        self._read_on_if_low()
        self._decode_queue.resume()

    @abstractmethod
    def _say(self, event: Event, timing: StepTiming | None) -> None:
        """Put the event into frames of the protocol."""

    def _count(self, event: Event) -> None:
        """Count a result, or end the connection with its last one."""
        if isinstance(event, Partial):
            if event.words and not self._interim_seen and self._first_audio_s is not None:
                self._interim_seen = True
                self._metrics.first_interim.observe(self._deadlines.progress_s - self._first_audio_s)
        elif isinstance(event, Final):
            self._metrics.endpoints[event.reason].inc()
            if event.endpoint_delay_s is not None:
                self._metrics.endpoint_delay.observe(event.endpoint_delay_s)
        elif isinstance(event, Closed):
            self._transition(ConnectionEvent.LAST_RESULT, event.reason)
        elif isinstance(event, StreamBroken):
            self._transition(ConnectionEvent.BROKEN)

    def _put(self, frame: OutFrame) -> None:
        if not self._writer.put(frame):
            self._transition(ConnectionEvent.SLOW_CONSUMER)

    # Flow control

    @property
    def _answer_due(self) -> bool:
        """True while received audio waits for the engine or the decoder."""
        return self._session.backlog_s > 0 or self._decode_queue.pending

    def _hold(self) -> None:
        """Read no more until `_read_on`."""
        if self._backpressure.hold():
            self._transport.pause_reading()

    def _read_on_if_low(self) -> None:
        """Called whenever the backlog of the engine or of the decoder has become smaller."""
        if self._backpressure.holding and self._backpressure.falls(self.backlog_s, self._decode_queue.fill):
            self._read_on()

    def _replace(self, session: Session, recognition: ActiveSession) -> None:
        """Go on with another session, which `recognition` admitted; no audio came before."""
        assert self._recognition is not None, "it runs"
        self._recognition.close()
        self._session, self._recognition = session, recognition

    def _read_on(self) -> None:
        """Take the messages that were read before reading stopped, then read on unless they stop it again."""
        self._deadlines.heard_s = self._clock()  # the client was silent because it was not read
        while self._unread and not self._backpressure.holding:
            self.on_message(self._unread.popleft())
        if not self._backpressure.holding:
            self._transport.resume_reading()

    # Time

    def _arm(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(max(seconds, MIN_TIMER_S), self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        """Look for a limit that is over. One timer serves them all; a message does not re-arm it."""
        if not self._state.sends:
            self._transition(ConnectionEvent.CLOSE_TIMED_OUT)
            return
        now = self._clock()
        writing_since_s, listening = self._writer.waiting_since(now), not self._backpressure.holding
        due = self._deadlines.due(now, writing_since_s, answer_due=self._answer_due, listening=listening)
        if due is not None:
            self._transition(due)
        if self._state.sends:
            self._arm(self._deadlines.wait_s(now))
