"""Live WebSocket connection: reading, writing and time limits around a sans-I/O session.

Protocols are subclasses of `server.streaming.slow_messages`; `server.streaming.closing` has the table of its end.
Messages and results are handled in callbacks, without tasks. Nothing blocks on compute: reading pauses only while the
client's own audio is ahead of the engine, so that TCP slows the client down. Every wait has a time limit: for an idle
client, a stalled engine, a client that does not read, and a close that is not answered.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import structlog
from starlette.websockets import WebSocket

from server.audio.decode_queue import DecodeQueue
from server.audio.decoder import LiveDecoder
from server.audio.formats import Encoding
from server.audio.pcm import PCM
from server.errors import CLOSES, BacklogExceeded, Close, CloseReason, MediaError
from server.recognition.active_session import ActiveSession
from server.recognition.events import Closed, Event, StepTiming, StreamBroken, separated
from server.recognition.messages import EndOfAudio, Flushing, FlushText, Samples
from server.recognition.session import Session
from server.recognition.steps import Work
from server.streaming.client_timer import ClientTimer
from server.streaming.closing import ConnectionEvent, State, next_state
from server.streaming.flow_control import (
    UNREAD_S,
    WRITE_TIMEOUT_S,
    Backpressure,
    ConnectionContext,
    Deadlines,
    ShortMessages,
    is_audio,
)
from server.streaming.outbox import OutFrame, ResultMetrics, Writer
from server.streaming.transport import transport_of
from server.usage.meters import UsageMeter

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.connection")


class Connection(ABC):
    """Receiver of its transport's messages, its decode queue's samples and its recognition's events."""

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
        """`encoding` is a metric label; `decoder` is None if the protocol decodes the audio itself."""
        limits, self._clock = context.limits, context.clock
        self._transport = transport_of(socket)
        self.session = session  # receives its audio
        self._metrics = context.metrics
        self._request_id = request_id
        self._recognition: ActiveSession | None = None
        self._state = State.OPENING
        self._reason: CloseReason | None = None  # recorded once, when results stop being sent
        self._close: Close | None = None  # close frame after the flush, instead of that of its reason
        self._ended: asyncio.Future[None] | None = None
        self._timer: ClientTimer | None = None
        self._opened_s = self._clock()
        self._deadlines = Deadlines(limits, self._opened_s)
        self._writer = Writer(self._transport, context.metrics, self._clock)
        self._results = ResultMetrics(context.metrics, self._clock)
        self._backpressure = Backpressure(limits.max_backlog_s)
        self._short = ShortMessages()
        self._unread: deque[bytes | str] = deque()  # messages that arrived after reading was paused: one read at most
        max_piece_s = limits.max_backlog_s - self._backpressure.high_s
        self._decode_queue = DecodeQueue(context.pool, decoder, max_piece_s=max_piece_s, opened_s=self._opened_s)
        self._received_audio_s = context.metrics.audio_seconds[encoding]
        self.usage: UsageMeter | None = None  # set while it is served

    @property
    def end_reason(self) -> CloseReason:
        """The reason of its end."""
        return self._reason or CloseReason.CLIENT_GONE

    @property
    def backlog_s(self) -> float:
        """Seconds of audio received without a result."""
        return self.session.backlog_s + (0.0 if self._decode_queue.inline else self._decode_queue.waiting_s)

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection until it ends; `recognition` is its admitted stream."""
        self._recognition = recognition
        _log.info("stream opened", request_id=self._request_id, streams=len(self.session.channels), **self._facts())
        self._opened_s = self._deadlines.received_s = self._deadlines.progress_s = self._clock()
        self._arm(self._deadlines.wait_s(self._opened_s))
        self._ended = asyncio.get_running_loop().create_future()
        self._decode_queue.receiver = self
        self._transition(ConnectionEvent.ATTACHED)
        if not self._state.sends:
            recognition.close()  # a drain was earlier
        try:
            self._transport.attach(self)
            await self._ended
        finally:
            self._transition(ConnectionEvent.SOCKET_GONE)
            self._report()
            self._decode_queue.release()
            self._recognition = None  # it refers back to this connection, as did the decode queue

    def look(self) -> float:
        """Read also fewer bytes than a step's if the last read is long ago, such as a message; return the backlog."""
        if self._clock() - self._deadlines.received_s > UNREAD_S:
            self._transport.read_at_least(1)
        return self.backlog_s

    def drain(self) -> None:
        """Finish the text, then close because the server restarts."""
        self._handle_short()
        self._transition(ConnectionEvent.SERVER_DRAINS)

    def _facts(self) -> dict[str, object]:
        return {}  # more fields of the log line `stream opened`

    # The end

    def _transition(
        self, event: ConnectionEvent, reason: CloseReason | None = None, close: Close | None = None
    ) -> bool:
        """Change the state and run the actions of entering it; return whether it has changed.

        `reason` and `close` override the event's reason and that reason's close frame.
        """
        before, reason = self._state, reason or event.reason
        self._state = state = next_state(before, event)
        if state is before:
            return False
        if before.sends and not state.sends:
            self._reason = reason
            self._stop_recognition()
        if state is State.FLUSHING:
            assert reason is not None
            self._close = close
            self._flush_and_end(reason)
        elif state is State.CLOSING:
            assert reason is not None
            self._arm(WRITE_TIMEOUT_S)
            after_flush = self._close if event is ConnectionEvent.LAST_RESULT else None
            self._writer.end(close or after_flush or CLOSES[reason])
        elif state is State.CUT:
            self._transport.abort()
        elif state is State.GONE:
            self._cancel_timer()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)
        return True

    def _stop_recognition(self) -> None:
        """Release the slots now, and drop waiting audio."""
        self._decode_queue.close()
        if self._recognition is not None:
            self._recognition.close()
        self._short.release()
        self._unread.clear()
        if self._backpressure.release():
            self._transport.resume_reading()  # only to detect the disconnect

    def _report(self) -> None:
        assert self._reason is not None, "recorded before the last state"
        if self._decode_queue.decoder is not None:
            self._results.repaired(self._decode_queue.decoder.losses)
        self._results.closed(self.protocol, self._reason, self._clock() - self._opened_s)
        _log.info(
            "stream closed",
            request_id=self._request_id,
            reason=self._reason.value,
            audio_s=round(self.session.audio.received_s, 3),
            steps=sum(channel.settings.steps_answered for channel in self.session.channels),
            **self._writer.facts(),
        )

    # Messages

    def on_message(self, message: bytes | str) -> None:
        """Handle a message, or keep it while the client's audio is ahead of the engine."""
        if self._backpressure.holding:
            self._unread.append(message)
            return
        now = self._deadlines.received_s = self._clock()
        short = self._short
        if len(message) < short.room and is_audio(message):
            short.kept.append(message)
            short.room -= len(message)
            return
        if short.kept:
            if is_audio(message):
                message = short.release(message)
            else:
                self._handle_short()
        if not self._state.reads:
            return  # only waiting for the disconnect
        if not self._answer_due:
            self._deadlines.progress_s = now
        if isinstance(message, str):
            self._on_text(message)
        else:
            self._on_binary(message)
        if self._state.reads:
            backlog_s, queue = self.backlog_s, self._decode_queue
            above = backlog_s > self._backpressure.high_s or not queue.inline
            if above and self._backpressure.rises(backlog_s, queue.fill):
                self._transport.pause_reading()

    def _handle_short(self) -> None:
        """Handle the short messages received so far, before anything that ends the audio."""
        if self._short.kept:
            chunk = self._short.release()
            if self._state.reads:
                self._on_binary(chunk)

    @property
    def flushing(self) -> bool:
        """True while the results of an ended stream are due."""
        return self._state is State.FLUSHING

    def on_writable(self) -> None:
        """Write the frames that are waiting in the outbox."""
        self._writer.flush()

    def on_gone(self) -> None:
        """End `run`."""
        self._handle_short()
        self._transition(ConnectionEvent.SOCKET_GONE)

    @abstractmethod
    def _on_text(self, text: str) -> None:
        """Handle a text frame."""

    @abstractmethod
    def _on_binary(self, chunk: bytes) -> None:
        """Handle a binary frame, possibly empty."""

    # Audio

    def _decode(self, chunk: bytes) -> None:
        """Decode a message's audio, at once or in its order on a thread, and process it."""
        self._metrics.audio_bytes.value += len(chunk)
        arrived_s = self._deadlines.received_s
        try:
            samples = self._decode_queue.audio(chunk, arrived_s)
        except BacklogExceeded:
            self._transition(ConnectionEvent.TOO_FAST)
        except MediaError as error:
            self.on_bad_audio(error)
        else:
            if samples is not None:
                self.on_samples(samples, arrived_s)
                if not self._short.room or len(samples) % self.session.audio.period:  # else the room is as before
                    self._short.make_room(self.session.audio.samples_to_step, self._decode_queue.frame_bytes)
                if self.session.rests is not None and self._recognition is not None:
                    self._transport.read_at_least(self._short.room if self._recognition.all_rest else 1)

    @property
    def has_room(self) -> bool:
        """Return whether the engine keeps up with the decoded audio."""
        return self.session.backlog_s <= self._backpressure.high_s

    def on_samples(self, samples: PCM, arrived_s: float, channel: int | None = None) -> None:
        """Handle decoded audio, (S, C) int16, in the order in which it was sent: cut it into steps for the engine.

        With a `channel` it is (S, 1), the samples of that channel.
        """
        session = self.session
        try:
            work = session.take(Samples(samples, arrived_s, channel))
        except BacklogExceeded:
            self._transition(ConnectionEvent.TOO_FAST)
            return
        results, queue = self._results, self._decode_queue
        if results.first_audio_s is None:
            results.first_audio_s = arrived_s
        if not queue.frame_bytes and queue.decoder is not None:  # plain samples do not show losses
            results.repaired(queue.decoder.losses)
        if not channel:  # a call with two channels counts once
            self._received_audio_s.value += len(samples) / session.options.sample_rate
        if work or ((rests := session.rests) is not None and rests.skipped):
            self._push(work)

    def on_progress(self) -> None:
        """Resume reading if it was paused for undecoded bytes: these may have held no audio, so no result follows."""
        if not self.session.backlog_s:  # otherwise a result of the engine is due
            self._deadlines.progress_s = self._clock()
        self._resume_reading_if_low()

    def on_bad_audio(self, error: MediaError) -> None:  # noqa: ARG002 - used by protocols that can send it
        """End the connection because its audio cannot be decoded."""
        self._transition(ConnectionEvent.BAD_AUDIO)

    def _finalize(self, channel: int | None) -> None:
        """Finish the text of the audio sent so far, on one channel or all; the stream continues."""
        self._decode_queue.drain(lambda: self._give(FlushText(channel, self._clock())), self._deadlines.received_s)

    def _flush_and_end(self, reason: CloseReason) -> None:
        """Finish the text of all audio and close the session; its last event is `Closed`."""
        now = self._clock()
        if not self._answer_due:
            self._deadlines.progress_s = now
        self._decode_queue.flush(lambda: self._give(EndOfAudio(reason, self._clock())), now)

    def _give(self, message: Flushing) -> None:
        self._short.room = 0  # not known after a flush
        self._transport.read_at_least(1)
        work, events = separated(self.session.take(message))
        if work or self.session.rests is not None:
            self._push(work)
        self.on_events(events, None)

    def _push(self, work: Sequence[Work]) -> None:
        assert self._recognition is not None, "audio arrives only while it runs"
        self._recognition.push(work)

    # Results

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Handle the events of a step or of a client frame."""
        self._deadlines.progress_s = self._clock()
        for event in events:
            if self._state.sends:
                self._send_event(event, timing)
                self._results.sent(event, timing)
                if isinstance(event, Closed):
                    self._transition(ConnectionEvent.LAST_RESULT, event.reason)
                elif isinstance(event, StreamBroken):
                    self._transition(ConnectionEvent.BROKEN)
        if self._backpressure.holding:
            if len(self.session.channels) == 1:
                self._resume_reading_if_low()
            else:  # the same batch may have answered another channel, whose events follow: later messages come after
                asyncio.get_running_loop().call_soon(self._resume_reading_if_low)
        if not self._decode_queue.inline:
            self._decode_queue.resume()

    @abstractmethod
    def _send_event(self, event: Event, timing: StepTiming | None) -> None:
        """Send the event as frames of the protocol."""

    def _put(self, frame: OutFrame) -> None:
        if not self._writer.put(frame):
            self._transition(ConnectionEvent.SLOW_CONSUMER)

    # Flow control

    @property
    def _answer_due(self) -> bool:
        """True while audio waits for the engine or the decoder."""
        queue = self._decode_queue
        return self.session.backlog_s > 0 or (not queue.inline and queue.pending)

    def _resume_reading_if_low(self) -> None:
        """Resume reading if the backlog is low enough; called whenever it has decreased."""
        if self._backpressure.falls(self.backlog_s, self._decode_queue.fill):
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Handle the kept messages, then resume reading unless they pause it again."""
        self._deadlines.received_s = self._clock()  # the client was not idle: reading was paused
        while self._unread and not self._backpressure.holding:
            self.on_message(self._unread.popleft())
        if not self._backpressure.holding:
            self._transport.resume_reading()

    # Time

    def _arm(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = ClientTimer(asyncio.get_running_loop(), seconds, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        """Check the time limits. One timer serves all of them; messages do not re-arm it."""
        if not self._state.sends:
            self._transition(ConnectionEvent.CLOSE_TIMED_OUT)
            return
        now = self._clock()
        listening, written_s = not self._backpressure.holding, self._writer.waiting_since(now)
        due = self._deadlines.due(now, written_s, answer_due=self._answer_due, listening=listening)
        if due is not None:
            self._handle_short()
            if self._state.sends:
                self._transition(due)
        if self._state.sends:
            self._arm(self._deadlines.wait_s(now))
