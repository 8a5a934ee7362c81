"""Runs a pure `server.streaming.adapter.Adapter` on a live connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

import structlog
from starlette.websockets import WebSocket

from batching.errors import BatchingError
from model.ctc.bias import BiasError
from server.audio.formats import Encoding
from server.errors import CLOSES, CloseReason, KeytermsTooOften, Refused
from server.recognition.active_session import ActiveSession
from server.recognition.events import Event, StepTiming
from server.recognition.session import Session
from server.streaming.adapter import (
    Action,
    Actions,
    Adapter,
    Bias,
    Endpoint,
    Finish,
    Flush,
    HangUp,
    Hear,
    Say,
    Skip,
    Switch,
)
from server.streaming.closing import ConnectionEvent
from server.streaming.connection import Connection, ConnectionContext
from server.streaming.outbox import OutFrame
from server.streaming.transport import MessageLimit

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.adapted")
# Opens a stream of the model of that name and language for a connection. Raises: Refused, BatchingError.
OpenOther = Callable[[Connection, str, str | None], Awaitable[ActiveSession]]


class AdapterConnection(Connection):
    """A connection in the protocol of its adapter."""

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        adapter: Adapter,
        context: ConnectionContext,
        *,
        protocol: str,
        encoding: Encoding,
        request_id: str,
        open_other: OpenOther | None = None,
        limit: MessageLimit | None = None,
    ) -> None:
        """`session` takes mono audio at the model's rate: the adapter decodes `encoding`, a metric label here.

        `open_other` is for an adapter that switches models, `limit` for one whose messages are larger than others.
        """
        super().__init__(socket, session, context, request_id=request_id, encoding=encoding, decoder=None)
        self.protocol = protocol
        self._adapter = adapter
        self._open_other = open_other
        self._switching: asyncio.Task[None] | None = None
        self._limit = limit
        self._skipped = False  # the first of a connection is logged
        self._undone: Iterator[Action] | None = None  # actions of the last message that wait for the engine

    @property
    def backlog_s(self) -> float:
        """Audio received and not yet answered; above the high-water mark while some of a message waits."""
        return super().backlog_s + (0.0 if self._undone is None else self._backpressure.high_s)

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection, which `recognition` admitted, to its end."""
        if self._limit is not None:
            self._transport.limit_messages(self._limit)
        self._do_all(self._adapter.opened())
        try:
            await super().run(recognition)
        finally:
            if self._switching is not None:
                self._switching.cancel()

    def _on_binary(self, chunk: bytes) -> None:
        self._undone = iter(self._adapter.binary(chunk))
        self._go_on()

    def _on_text(self, text: str) -> None:
        self._undone = iter(self._adapter.text(text))
        self._go_on()

    def _go_on(self) -> None:
        """Do what the last message asks for, while the engine keeps up with its audio."""
        undone, self._undone = self._undone, None
        for action in undone or ():
            if not self._state.sends:
                return
            self._do(action, None)
            if self._state.reads and not self.has_room:
                self._undone = undone  # `backlog_s` stops reading, so that no other message comes first
                return

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take the events of a step, then more of the message that waits."""
        super().on_events(events, timing)
        if self._undone is None:
            return
        if not self._state.reads:
            self._undone = None  # the connection ends: what waits is not heard
        elif self.has_room:
            self._go_on()
            if self._undone is None and self._backpressure.falls(self.backlog_s, self._decode_queue.fill):
                self._read_on()

    def _say(self, event: Event, timing: StepTiming | None) -> None:
        self._do_all(self._adapter.event(event, timing), timing)

    def _do_all(self, actions: Actions, timing: StepTiming | None = None) -> None:
        for action in actions:
            if self._state.sends:
                self._do(action, timing)

    def _do(self, action: Action, timing: StepTiming | None) -> None:
        match action:
            case Say(payload, kind, flushed):
                self._put(OutFrame(payload, kind, timing, flushed))
            case Hear(samples, received_bytes):
                self._metrics.audio_bytes.inc(received_bytes)
                if len(samples):
                    self.on_samples(samples[:, None], self._deadlines.heard_s)
            case Flush():
                self._finalize(None)
            case Finish():
                self._transition(ConnectionEvent.CLIENT_CLOSES)
            case HangUp(why):
                close = replace(CLOSES[CloseReason.NOT_UNDERSTOOD], reason=f"DATA-0000 {why}")
                self._transition(ConnectionEvent.NOT_UNDERSTOOD, close=close)
            case Skip(why):
                self._skip(why)
            case Bias() | Endpoint() | Switch():
                self._set(action)

    def _skip(self, why: str) -> None:
        """Count a message that is not understood, and log the first of them."""
        self._metrics.skipped[self.protocol].inc()
        if not self._skipped:
            _log.info("message skipped", request_id=self._request_id, reason=why)
        self._skipped = True

    def _set(self, action: Bias | Endpoint | Switch) -> None:
        match action:
            case Bias(phrases):
                self._bias(phrases)
            case Endpoint(silence_ms):
                self._session.set_endpointing(silence_ms)
            case Switch():
                self._hold()
                self._switching = asyncio.create_task(self._switch(action))
                self._switching.add_done_callback(self._on_switch_ended)

    async def _switch(self, asked: Switch) -> None:
        assert self._open_other is not None, "the adapter's endpoint gives it"
        try:
            recognition = await self._open_other(self, asked.model, asked.language)
        except (Refused, BatchingError) as error:
            self._do_all(asked.refused(str(error)))
        else:
            if not self._state.reads:  # it was drained, or the client left
                recognition.close()
                return
            self._replace(recognition.session, recognition)
            self._do_all(asked.done(recognition.session.options.sample_rate))
        if self._state.reads and self._backpressure.release():
            self._read_on()

    def _on_switch_ended(self, switching: asyncio.Task[None]) -> None:
        error = None if switching.cancelled() else switching.exception()
        if error is not None:
            _log.error("a stream could not change its model", request_id=self._request_id, exc_info=error)
            self._transition(ConnectionEvent.BROKEN)

    def _bias(self, phrases: tuple[str, ...]) -> None:
        why = "this server decodes greedily, which knows no key terms"
        if not (phrases or self._session.supports_keyterms):
            return
        if self._session.supports_keyterms:
            try:
                self._session.replace_phrases(phrases)
            except (BiasError, KeytermsTooOften) as error:
                why = str(error)
            else:
                return
        _log.info("key terms refused", request_id=self._request_id, reason=why)
        self._do_all(self._adapter.not_biased(why))
