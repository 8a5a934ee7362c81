"""Live connection in Deepgram's protocol: client frames in, results as JSON out (`projector.py`).

Messages that change what a stream favors, or decode it again (Configure, Context, Rewind), are applied to the session
and answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.websockets import WebSocket

from model.ctc.bias import Bias, BiasError
from server.audio.packets import LiveDecoder
from server.errors import BadFrame, KeytermsTooOften, MediaError
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
from server.protocols.deepgram.projector import MAX_ECHO, Projector
from server.recognition.events import Closed, Event, StepTiming
from server.recognition.messages import RewindFinals
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


def configure(session: Session, projector: Projector, asked: Configure, *, unbuilt: str | None = None) -> bytes:
    """Apply a Configure message (only key terms can change); return the answer, which lists the key terms in force.

    `unbuilt`: why its terms could not be built, here and below.
    """
    problem, phrases = _problem(session, projector, asked), asked.keyterms
    if problem is not None:
        return projector.not_configured(*problem)
    if phrases is None or tuple(phrases) == session.keyterms.current.phrases:
        return projector.configured(session.keyterms.current.phrases)
    if unbuilt is not None:
        return projector.not_configured(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        session.keyterms.replace_phrases(phrases)
    except KeytermsTooOften as error:
        return projector.not_configured(ConfigureCode.ALREADY_PENDING, str(error))
    except BiasError as error:
        return projector.not_configured(ConfigureCode.KEYTERM_LIMIT_EXCEEDED, str(error))
    return projector.configured(session.keyterms.current.phrases)


def _problem(session: Session, projector: Projector, asked: Configure) -> tuple[ConfigureCode, str] | None:
    """Return why a change is not possible in this stream, None if it may be."""
    unsupported = asked.unsupported(projector.request.switches)
    if unsupported:
        names = ", ".join(unsupported)[:MAX_ECHO]
        return ConfigureCode.NOT_SUPPORTED, f"{names}: cannot be changed during a stream; only keyterms can"
    if asked.keyterms is None or tuple(asked.keyterms) == session.keyterms.current.phrases:
        return None
    if projector.receipts is not None:
        return ConfigureCode.NOT_SUPPORTED, "keyterms: cannot be changed in a stream with receipts"
    if asked.keyterms and not session.keyterms.supported:
        code = ConfigureCode.KEYTERMS_NOT_SUPPORTED
        return code, "keyterms: not supported with greedy decoding; leave them out"
    return None


def in_context(session: Session, projector: Projector, said: str, *, unbuilt: str | None = None) -> bytes:
    """Favor the rare words of what another speaker said; return the answer, which lists those in force."""
    if projector.receipts is not None:
        return projector.no_context(ConfigureCode.NOT_SUPPORTED, "text: not possible in a stream with receipts")
    if not session.keyterms.supported:
        why = "text: key terms are not supported with this model or decoder; leave it out"
        return projector.no_context(ConfigureCode.KEYTERMS_NOT_SUPPORTED, why)
    if unbuilt is not None:
        return projector.no_context(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        return projector.context(session.keyterms.add_context(said))
    except KeytermsTooOften as error:
        return projector.no_context(ConfigureCode.ALREADY_PENDING, str(error))


def rewind(
    session: Session, projector: Projector, asked: Rewind, *, unbuilt: str | None = None
) -> Sequence[Event] | bytes:
    """Decode the last seconds again with more key terms; return the events, or the answer that refuses it."""
    most_s = session.options.rewind_s
    if not most_s:
        why = "rewind: this stream keeps nothing to decode again; set rewind=10 in the query"
        return projector.not_rewound(ConfigureCode.NOT_SUPPORTED, why)
    if not 0 < asked.seconds <= most_s:
        why = f"seconds: {asked.seconds:g} is not valid; must be above 0 and at most {most_s:g} (rewind)"
        return projector.not_rewound(ConfigureCode.NOT_SUPPORTED, why)
    if unbuilt is not None:
        return projector.not_rewound(ConfigureCode.ALREADY_PENDING, unbuilt)
    try:
        return session.take(RewindFinals(asked.seconds, asked.keyterms, asked.channel))
    except KeytermsTooOften as error:
        return projector.not_rewound(ConfigureCode.ALREADY_PENDING, str(error))
    except BiasError as error:
        return projector.not_rewound(ConfigureCode.KEYTERM_LIMIT_EXCEEDED, f"keyterms: {error}")
