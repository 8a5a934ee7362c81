"""Live connection in Deepgram's protocol: client frames in, results as JSON out (`projector.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.websockets import WebSocket

from model.ctc.bias import Bias
from server.audio.decode_queue import LiveDecoder
from server.errors import BadFrame, MediaError
from server.protocols.deepgram.control import configure, in_context, rewind
from server.protocols.deepgram.messages import (
    BadConfigure,
    CloseStream,
    Configure,
    ConfigureCode,
    Context,
    Finalize,
    Rewind,
    control_text,
    parse_frame,
)
from server.protocols.deepgram.projector import Projector
from server.recognition.events import Closed, Event, StepTiming
from server.recognition.session import Session
from server.streaming.closing import ConnectionEvent
from server.streaming.connection import Connection, ConnectionContext
from server.streaming.outbox import OutFrame, kind_of


class DeepgramStream(Connection):
    """A connection in Deepgram's protocol."""

    protocol = "deepgram"

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        projector: Projector,
        context: ConnectionContext,
        decoder: LiveDecoder,
    ) -> None:
        encoding = projector.request.form.encoding
        super().__init__(socket, session, context, request_id=projector.request_id, encoding=encoding, decoder=decoder)
        self._projector = projector

    def _facts(self) -> dict[str, object]:
        tags = self._projector.request.tags
        return {"tags": tags} if tags else {}

    def _on_binary(self, chunk: bytes) -> None:
        if not chunk:
            self._transition(ConnectionEvent.CLIENT_CLOSES)
            return
        if (text := control_text(chunk)) is not None:
            self._on_text(text)
            return
        self._decode(chunk)

    def _on_text(self, text: str) -> None:
        try:
            action = parse_frame(text, len(self._session.channels))
        except BadConfigure as error:
            why = str(error)
            failure = self._projector.not_configured(ConfigureCode.NOT_SUPPORTED, why.removeprefix("Configure: "))
            self._decode_queue.then(lambda: self._put(OutFrame(failure)))
            return
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text)))
            return
        keyterms = self._session.keyterms
        match action:
            case Finalize(channel):
                self._finalize(channel)
            case CloseStream():
                self._transition(ConnectionEvent.CLIENT_CLOSES)
            case Configure():
                asked = tuple(action.keyterms or ())
                self._change(asked, partial(keyterms.asked_for, action.keyterms), partial(configure, asked=action))
            case Context(said):
                self._change((said,), partial(keyterms.asked_for, said=said), partial(in_context, said=said))
            case Rewind(keyterms=more):
                self._change(tuple(more), partial(keyterms.asked_for, more=more), partial(rewind, asked=action))

    def _change(
        self, asked: tuple[str, ...], read: Callable[[], Sequence[Bias]], change: Callable[..., Sequence[Event] | bytes]
    ) -> None:
        """Change the key terms, once they are built, after the audio before; send the answer or the events."""

        def changed(why: str | None) -> None:
            self._decode_queue.then(lambda: self._answer(change(self._session, self._projector, unbuilt=why)))

        self._once_built(asked, read, changed)

    def _answer(self, found: Sequence[Event] | bytes) -> None:
        if isinstance(found, bytes):
            self._put(OutFrame(found))
        else:
            self.on_events(found, None)

    def on_bad_audio(self, error: MediaError) -> None:
        """Send an Error frame with the cause, then end the connection."""
        self._put(OutFrame(self._projector.undecodable(str(error))))
        super().on_bad_audio(error)

    def _send_event(self, event: Event, timing: StepTiming | None) -> None:
        if isinstance(event, Closed) and self._decode_queue.decoder is not None:
            self._projector.warnings = self._decode_queue.decoder.warnings
        payload = self._projector.frame(event, timing, self._writer.write_s)
        if payload is not None:
            kind, flushed = kind_of(event)
            self._put(OutFrame(payload, kind, timing, flushed))
