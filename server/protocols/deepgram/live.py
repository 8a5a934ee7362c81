"""Live connection in Deepgram's protocol: client frames in, results as JSON out (`projector.py`).

Messages that change what a stream favors, or decode it again (Configure, Context, Rewind), are applied to the session
and answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.websockets import WebSocket

from model.ctc.bias import Bias, BiasError
from server.audio.decoder import LiveDecoder
from server.errors import BadFrame, KeytermsTooOften, MediaError
from server.protocols.deepgram.messages import (
    BadConfigure,
    CloseStream,
    Configure,
    ConfigureCode,
    Context,
    Finalize,
    Rewind,
    parse_frame,
)
from server.protocols.deepgram.projector import MAX_ECHO, Projector
from server.protocols.features import control_text
from server.recognition.events import Closed, Event, Final, StepTiming
from server.recognition.messages import RewindFinals
from server.recognition.session import Session
from server.streaming.closing import ConnectionEvent
from server.streaming.flow_control import BRACE, ConnectionContext
from server.streaming.outbox import OutFrame, kind_of
from server.streaming.slow_messages import PatientConnection

Change = Configure | Context | Rewind


class DeepgramStream(PatientConnection):
    """A connection in Deepgram's protocol."""

    protocol = "deepgram"
    on_result: Callable[[bytes], None] | None = None
    """Receives each final, and the last message of the stream."""

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
        if chunk[0] == BRACE and (text := control_text(chunk)) is not None:
            self._on_text(text)
        else:
            self._decode(chunk)

    def _on_text(self, text: str) -> None:
        try:
            action = parse_frame(text, len(self.session.channels))
        except BadConfigure as error:
            why = str(error).removeprefix("Configure: ")
            failure = self._projector.failure(Configure, ConfigureCode.NOT_SUPPORTED, why)
            self._decode_queue.then(lambda: self._put(OutFrame(failure)))
            return
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text)))
            return
        keyterms = self.session.keyterms
        match action:
            case Finalize(channel):
                self._finalize(channel)
            case CloseStream():
                self._transition(ConnectionEvent.CLIENT_CLOSES)
            case Configure(keyterms=terms):
                self._change(action, tuple(terms or ()), partial(keyterms.asked_for, terms))
            case Context(said):
                self._change(action, (said,), partial(keyterms.asked_for, said=said))
            case Rewind(keyterms=more):
                self._change(action, tuple(more), partial(keyterms.asked_for, more=more))

    def _change(self, message: Change, terms: tuple[str, ...], read: Callable[[], Sequence[Bias]]) -> None:
        """Apply a message once its key terms are built, after the audio before it."""
        built = partial(self._apply, message)
        self._once_built(terms, read, lambda why: self._decode_queue.then(partial(built, why)))

    def _apply(self, message: Change, unbuilt: str | None) -> None:
        answer = applied(self.session, self._projector, message, unbuilt)
        if isinstance(answer, bytes):
            self._put(OutFrame(answer))
        else:
            self.on_events(answer, None)

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
            if self.on_result is not None and isinstance(event, Final | Closed):
                self.on_result(payload)


def applied(session: Session, projector: Projector, message: Change, unbuilt: str | None) -> Sequence[Event] | bytes:
    """Change what a stream favors, or decode it again; return the events, or the answer.

    `unbuilt`: why the key terms of the message could not be built.
    """
    try:
        match message:
            case Configure():
                return _configure(session, projector, message, unbuilt)
            case Context(said):
                return _add_context(session, projector, said, unbuilt)
            case Rewind():
                return _rewind(session, message, unbuilt)
    except NotPossible as error:
        code, why = error.code, str(error)
    except KeytermsTooOften as error:
        code, why = ConfigureCode.ALREADY_PENDING, str(error)
    except BiasError as error:
        code, why = ConfigureCode.KEYTERM_LIMIT_EXCEEDED, str(error)
        why = f"keyterms: {why}" if isinstance(message, Rewind) else why
    return projector.failure(type(message), code, why)


class NotPossible(Exception):
    """A message that this stream does not support at all, or not now; `code` is that of the answer."""

    def __init__(self, code: ConfigureCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def _check_built(unbuilt: str | None) -> None:
    if unbuilt is not None:
        raise NotPossible(ConfigureCode.ALREADY_PENDING, unbuilt)


def _configure(session: Session, projector: Projector, message: Configure, unbuilt: str | None) -> bytes:
    """Replace the key terms, which alone can change; return the answer, which lists those in force.

    Raises: NotPossible, KeytermsTooOften, BiasError, as the others below.
    """
    keyterms, phrases = session.keyterms, message.keyterms
    if unsupported := message.unsupported(projector.request.switches):
        names = ", ".join(unsupported)[:MAX_ECHO]
        why = f"{names}: cannot be changed during a stream; only keyterms can"
        raise NotPossible(ConfigureCode.NOT_SUPPORTED, why)
    if phrases is not None and tuple(phrases) != keyterms.current.phrases:
        if projector.receipts is not None:
            raise NotPossible(ConfigureCode.NOT_SUPPORTED, "keyterms: cannot be changed in a stream with receipts")
        if phrases and not keyterms.supported:
            why = "keyterms: not supported with greedy decoding; leave them out"
            raise NotPossible(ConfigureCode.KEYTERMS_NOT_SUPPORTED, why)
        _check_built(unbuilt)
        keyterms.replace_phrases(phrases)
    return projector.configured(keyterms.current.phrases)


def _add_context(session: Session, projector: Projector, said: str, unbuilt: str | None) -> bytes:
    """Favor the rare words of what another speaker said; return the answer, which lists those in force."""
    if projector.receipts is not None:
        raise NotPossible(ConfigureCode.NOT_SUPPORTED, "text: not possible in a stream with receipts")
    if not session.keyterms.supported:
        why = "text: key terms are not supported with this model or decoder; leave it out"
        raise NotPossible(ConfigureCode.KEYTERMS_NOT_SUPPORTED, why)
    _check_built(unbuilt)
    return projector.context(session.keyterms.add_context(said))


def _rewind(session: Session, message: Rewind, unbuilt: str | None) -> Sequence[Event]:
    """Decode the last seconds again with more key terms; return the events."""
    most_s = session.options.rewind_s
    if not most_s:
        why = "rewind: this stream keeps nothing to decode again; set rewind=10 in the query"
        raise NotPossible(ConfigureCode.NOT_SUPPORTED, why)
    if not 0 < message.seconds <= most_s:
        why = f"seconds: {message.seconds:g} is not valid; must be above 0 and at most {most_s:g} (rewind)"
        raise NotPossible(ConfigureCode.NOT_SUPPORTED, why)
    _check_built(unbuilt)
    return session.take(RewindFinals(message.seconds, message.keyterms, message.channel))
