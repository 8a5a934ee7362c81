"""Runs a pure `server.streaming.adapter.Adapter` on a live connection."""

from __future__ import annotations

from dataclasses import replace

import structlog
from starlette.websockets import WebSocket

from model.ctc.bias import BiasError
from server.audio.formats import Encoding
from server.errors import CLOSES, CloseReason, KeytermsTooOften
from server.recognition.active_session import ActiveSession
from server.recognition.events import Event, StepTiming
from server.recognition.session import Session
from server.streaming.adapter import Action, Actions, Adapter, Bias, Endpoint, Finish, Flush, HangUp, Hear, Say
from server.streaming.closing import ConnectionEvent
from server.streaming.connection import Connection, ConnectionContext
from server.streaming.outbox import OutFrame

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.adapted")


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
    ) -> None:
        """`session` takes mono audio at the model's rate: the adapter decodes `encoding`, a metric label here."""
        super().__init__(socket, session, context, request_id=request_id, encoding=encoding, decoder=None)
        self.protocol = protocol
        self._adapter = adapter

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection, which `recognition` admitted, to its end."""
        self._do_all(self._adapter.opened())
        await super().run(recognition)

    def _on_binary(self, chunk: bytes) -> None:
        self._do_all(self._adapter.binary(chunk))

    def _on_text(self, text: str) -> None:
        self._do_all(self._adapter.text(text))

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
            case Bias(phrases):
                self._bias(phrases)
            case Endpoint(silence_ms):
                self._session.set_endpointing(silence_ms)

    def _bias(self, phrases: tuple[str, ...]) -> None:
        why = "this server decodes greedily, which knows no key terms"
        if self._session.supports_keyterms:
            try:
                self._session.replace_phrases(phrases)
            except (BiasError, KeytermsTooOften) as error:
                why = str(error)
            else:
                return
        _log.info("key terms refused", request_id=self._request_id, reason=why)
        self._do_all(self._adapter.not_biased(why))
