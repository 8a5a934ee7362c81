"""A live connection that runs a `server.streaming.adapter.Adapter`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog
from starlette.websockets import WebSocket

from batching.errors import BatchingError
from model.ctc.bias import Bias as TermBias
from model.ctc.bias import BiasError
from server.audio.decoder import LiveDecoder
from server.audio.formats import Encoding
from server.errors import CLOSES, CloseReason, KeytermsTooOften, MediaError, Refused, ServerFull
from server.recognition.active_session import ActiveSession
from server.recognition.events import Event, StepTiming
from server.recognition.keyterms.keyterms import fitting
from server.recognition.messages import ChooseLanguage, Endpoint
from server.recognition.session import Session
from server.streaming.adapter import (
    Action,
    Actions,
    Adapter,
    AfterAudio,
    Audio,
    Bias,
    Differing,
    Encoded,
    Finish,
    Flush,
    PushAudio,
    Reject,
    SendFrame,
    Setting,
    Skip,
    Switch,
)
from server.streaming.closing import ConnectionEvent
from server.streaming.connection import Connection
from server.streaming.flow_control import ConnectionContext
from server.streaming.outbox import OutFrame
from server.streaming.slow_messages import PatientConnection
from server.streaming.transport import MessageLimit

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.adapter")
# Opens a stream on another model, by name and language, for a connection. Raises: Refused, BatchingError.
_WITH_TERMS = AfterAudio, Bias
OpenModel = Callable[[Connection, str, str | None], Awaitable[ActiveSession]]


class AdapterConnection(PatientConnection):
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
        decoder: LiveDecoder | None = None,
        open_model: OpenModel | None = None,
        limit: MessageLimit | None = None,
    ) -> None:
        """`encoding` is only a metric label. Without a `decoder` the adapter decodes audio, to the model's rate.

        `open_model` is required for an adapter that switches models, `limit` for one with larger messages.
        """
        super().__init__(socket, session, context, request_id=request_id, encoding=encoding, decoder=decoder)
        self.protocol = protocol
        self._adapter = adapter
        self._audio_refused: Callable[[str], Actions] | None = None
        self._open_model = open_model
        self._limit = limit
        self._skipped = False  # only the first skipped message of a connection is logged
        self._unbuilt: str | None = None  # why the key terms of the action that is run could not be built
        self._pending: Iterator[Action] | None = None  # remaining actions of the last message, waiting for the engine

    @property
    def backlog_s(self) -> float:
        """Seconds of audio without a result; above the high-water mark while part of a message is pending."""
        return super().backlog_s + (0.0 if self._pending is None else self._backpressure.high_s)

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection until it ends; `recognition` is its admitted stream."""
        if self._limit is not None:
            self._transport.limit_messages(self._limit)
        self._do_all(self._adapter.opened())
        await super().run(recognition)

    def _on_binary(self, chunk: bytes) -> None:
        self._pending = iter(self._adapter.binary(chunk))
        self._do_pending()

    def _on_text(self, text: str) -> None:
        self._pending = iter(self._adapter.text(text))
        self._do_pending()

    def _do_pending(self) -> None:
        """Run the last message's remaining actions, as far as the engine keeps up with its audio."""
        pending, self._pending = self._pending or iter(()), None
        for action in pending:
            if not self._state.sends:
                return
            if isinstance(action, _WITH_TERMS):
                phrases, prompt = action.phrases, "" if isinstance(action, AfterAudio) else action.prompt
                read = partial(self._biases_of, phrases, prompt)
                self._once_built((*phrases, prompt), read, partial(self._do_built, action, pending))
                return
            self._do(action, None)
            if self._state.reads and not self.has_room:
                self._pending = pending  # `backlog_s` then stops reading, so no later message is processed first
                return

    def _biases_of(self, phrases: tuple[str, ...], prompt: str) -> Sequence[TermBias]:
        keyterms = self.session.keyterms
        try:
            return keyterms.asked_for((*fitting(keyterms.rare_terms(prompt), phrases), *phrases))
        except BiasError:  # refused when it is run
            return ()

    def _do_built(self, action: Action, pending: Iterator[Action], why: str | None) -> None:
        """Run an action whose key terms are built, or are not for this reason, and those after it."""
        self._unbuilt = why
        self._do(action, None)
        self._unbuilt = None
        self._pending = pending
        self._do_pending()

    def _do_after(self, actions: Callable[[float], Actions], why: str | None) -> None:
        self._unbuilt = why
        self._do_all(actions(self.session.audio.received_s))
        self._unbuilt = None

    def _resume_reading_if_low(self) -> None:
        if not self._state.reads:
            self._pending = None  # the connection is ending: drop the rest
        elif self._pending is not None and self.has_room:
            self._do_pending()
        super()._resume_reading_if_low()

    def _send_event(self, event: Event, timing: StepTiming | None) -> None:
        self._do_all(self._adapter.event(event, timing), timing)

    def _do_all(self, actions: Actions, timing: StepTiming | None = None) -> None:
        for action in actions:
            if self._state.sends:
                self._do(action, timing)

    def _do(self, action: Action, timing: StepTiming | None) -> None:
        match action:
            case SendFrame(payload, kind, flushed):
                self._put(OutFrame(payload, kind, timing, flushed))
            case PushAudio() | Encoded():
                self._take(action)
            case AfterAudio(actions):
                self._decode_queue.then(partial(self._do_after, actions, self._unbuilt))
            case Flush():
                self._finalize(None)
            case Finish():
                self._transition(ConnectionEvent.CLIENT_CLOSES)
            case Reject(why):
                close = replace(CLOSES[CloseReason.NOT_UNDERSTOOD], reason=f"DATA-0000 {why}")
                self._transition(ConnectionEvent.NOT_UNDERSTOOD, close=close)
            case Skip(why):
                self._skip(why)
            case Differing(words):
                self._metrics.turn_words_differing.inc(words)
            case Bias() | Endpoint() | ChooseLanguage() | Switch():
                self._set(action)

    def _take(self, audio: Audio) -> None:
        match audio:
            case PushAudio(samples, received_bytes, channel):
                self._metrics.audio_bytes.value += received_bytes
                if len(samples):
                    self.on_samples(samples[:, None], self._deadlines.received_s, channel)
            case Encoded(chunk, refused):
                self._audio_refused = refused
                self._decode(chunk)

    def on_bad_audio(self, error: MediaError) -> None:
        """Let the adapter send the cause, then end the connection."""
        if self._audio_refused is not None:
            self._do_all(self._audio_refused(str(error)))
        super().on_bad_audio(error)

    def _skip(self, why: str) -> None:
        """Count a skipped message; log the first one of the connection."""
        self._metrics.skipped[self.protocol].inc()
        if not self._skipped:
            _log.info("message skipped", request_id=self._request_id, reason=why)
        self._skipped = True

    def _set(self, action: Setting) -> None:
        match action:
            case ChooseLanguage():
                self.session.take(action)
            case Bias():
                self._bias(action)
            case Endpoint():
                self.session.take(action)
                if action.scored is not None and self._recognition is not None:
                    with contextlib.suppress(ServerFull):  # the score is that of silence alone
                        self._recognition.ask_in_pauses()
            case Switch():
                self._wait_for(self._switch(action))

    async def _switch(self, switch: Switch) -> None:
        assert self._open_model is not None, "needed by an adapter that switches models"
        try:
            recognition = await self._open_model(self, switch.model, switch.language)
        except (Refused, BatchingError) as error:
            self._do_all(switch.refused(str(error)))
        else:
            if not self._state.reads:  # it was drained, or the client left
                recognition.close()
                return
            assert self._recognition is not None, "a message arrives only while it runs"
            self._recognition.close()
            self.session, self._recognition = recognition.session, recognition  # no audio was received before
            self._pending = iter(switch.done(recognition.session.options.sample_rate))
            self._do_pending()

    def _bias(self, bias: Bias) -> None:
        why, session, phrases = "not supported with greedy decoding", self.session, bias.phrases
        if not (phrases or bias.prompt or session.keyterms.supported):
            return
        if self._unbuilt is not None:
            why = self._unbuilt
        elif session.keyterms.supported:
            try:
                terms = fitting(session.keyterms.rare_terms(bias.prompt), phrases)
                left_out = session.keyterms.replace_phrases((*terms, *phrases), hints=bias.hints)
            except (BiasError, KeytermsTooOften) as error:
                why = str(error)
            else:
                if left_out:
                    self._skip(f"{left_out} of {len(phrases)} phrases cannot be recognized by this model")
                return
        _log.info("key terms refused", request_id=self._request_id, reason=why)
        self._do_all(self._adapter.bias_refused(why))
