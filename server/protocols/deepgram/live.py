"""Live connection in Deepgram's protocol: client frames in, results as JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType
from starlette.websockets import WebSocket

from model.ctc.bias import BiasError
from server.audio.decode_queue import LiveDecoder
from server.audio.formats import Losses
from server.audio.pcm import PCM
from server.errors import BacklogExceeded, BadFrame, KeytermsTooOften, MediaError
from server.models.loading import ModelCard
from server.protocols.deepgram.messages import (
    CloseStream,
    Configure,
    ConfigureCode,
    ConfigureFailure,
    ConfigureSuccess,
    Context,
    ContextFailure,
    ContextSuccess,
    Error,
    ErrorVariant,
    Finalize,
    Latency,
    Metadata,
    Results,
    ResultsMetadata,
    Rewind,
    RewindFailure,
    SpeechStartedOut,
    StepReport,
    UtteranceEnd,
    control_text,
    parse_frame,
    warned,
)
from server.protocols.deepgram.query import ListenRequest
from server.protocols.deepgram.receipts import StreamReceipts
from server.protocols.deepgram.transcript import Transcript
from server.recognition.events import (
    Closed,
    Correction,
    Event,
    Final,
    FinalReason,
    Forked,
    Partial,
    Silence,
    SpeechStarted,
    StepTiming,
    StreamBroken,
    TurnAnswered,
    UtteranceGap,
)
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
        self._decoder, self._counted_losses = decoder, Losses()

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
        self._metrics.audio_bytes.inc(len(chunk))
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

    def _on_text(self, text: str) -> None:
        try:
            action = parse_frame(text, len(self._session.channels))
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text)))
            return
        match action:
            case Finalize(channel):
                self._finalize(channel)
            case CloseStream():
                self._transition(ConnectionEvent.CLIENT_CLOSES)
            case Configure():
                self._decode_queue.then(lambda: self._configure(action))
            case Context(said):
                self._decode_queue.then(lambda: self._put(OutFrame(in_context(self._session, self._projector, said))))

            case Rewind():
                self._decode_queue.then(lambda: self._rewind(action))

    def _rewind(self, asked: Rewind) -> None:
        session = self._session
        most_s, code = session.options.rewind_s, ConfigureCode.NOT_SUPPORTED
        if not most_s:
            why = "rewind: this stream keeps nothing to decode again; set rewind=10 in the query"
        elif not 0 < asked.seconds <= most_s:
            why = f"seconds: {asked.seconds:g} is not valid; must be above 0 and at most {most_s:g} (rewind)"
        else:
            try:
                events = session.rewind(asked.seconds, asked.keyterms, asked.channel)
            except KeytermsTooOften as error:
                why, code = str(error), ConfigureCode.ALREADY_PENDING
            except BiasError as error:
                why, code = f"keyterms: {error}", ConfigureCode.KEYTERM_LIMIT_EXCEEDED
            else:
                self.on_events(events, None)
                return
        self._put(OutFrame(self._projector.not_rewound(code, why)))

    def _configure(self, asked: Configure) -> None:
        self._put(OutFrame(configure(self._session, self._projector, asked)))

    def on_samples(self, samples: PCM, arrived_s: float, channel: int | None = None) -> None:
        """Count repaired losses, then process the audio."""
        self._count_losses()
        super().on_samples(samples, arrived_s, channel)

    def _count_losses(self) -> None:
        losses, counted = self._decoder.losses, self._counted_losses
        if losses.concealed != counted.concealed or losses.resyncs != counted.resyncs:
            self._metrics.audio_concealed.inc(losses.concealed - counted.concealed)
            self._metrics.audio_resyncs.inc(losses.resyncs - counted.resyncs)
            self._counted_losses = replace(losses)

    def on_bad_audio(self, error: MediaError) -> None:
        """Send an Error frame with the cause, then end the connection."""
        self._count_losses()
        self._put(OutFrame(self._projector.undecodable(str(error))))
        super().on_bad_audio(error)

    def _send_event(self, event: Event, timing: StepTiming | None) -> None:
        if isinstance(event, Closed):
            self._count_losses()
            self._projector.warnings = self._decoder.warnings
        payload = self._projector.frame(event, timing, self._writer.write_s)
        if payload is not None:
            kind, flushed = kind_of(event)
            self._put(OutFrame(payload, kind, timing, flushed))


def configure(session: Session, projector: Projector, asked: Configure) -> bytes:
    """Apply a Configure message (only key terms can change); return the answer, which lists the key terms in force."""
    problem, phrases = _problem(session, projector, asked), asked.keyterms
    if problem is not None:
        return projector.not_configured(*problem)
    if phrases is None or tuple(phrases) == session.keyterms.phrases:
        return projector.configured(session.keyterms.phrases)
    try:
        session.replace_phrases(phrases)
    except KeytermsTooOften as error:
        return projector.not_configured(ConfigureCode.ALREADY_PENDING, str(error))
    except BiasError as error:
        return projector.not_configured(ConfigureCode.KEYTERM_LIMIT_EXCEEDED, str(error))
    return projector.configured(session.keyterms.phrases)


def _problem(session: Session, projector: Projector, asked: Configure) -> tuple[ConfigureCode, str] | None:
    """Return why a change is not possible in this stream, None if it may be."""
    unsupported = asked.unsupported(projector.request.switches)
    if unsupported:
        names = ", ".join(unsupported)[:MAX_ECHO]
        return ConfigureCode.NOT_SUPPORTED, f"{names}: cannot be changed during a stream; only keyterms can"
    if asked.keyterms is None or tuple(asked.keyterms) == session.keyterms.phrases:
        return None
    if projector.receipts is not None:
        return ConfigureCode.NOT_SUPPORTED, "keyterms: cannot be changed in a stream with receipts"
    if asked.keyterms and not session.supports_keyterms:
        code = ConfigureCode.KEYTERMS_NOT_SUPPORTED
        return code, "keyterms: not supported with greedy decoding; leave them out"
    return None


def in_context(session: Session, projector: Projector, said: str) -> bytes:
    """Favor the rare words of what another speaker said; return the answer, which lists those in force."""
    if projector.receipts is not None:
        return projector.no_context(ConfigureCode.NOT_SUPPORTED, "text: not possible in a stream with receipts")
    if not session.supports_keyterms:
        why = "text: key terms are not supported with this model or decoder; leave it out"
        return projector.no_context(ConfigureCode.KEYTERMS_NOT_SUPPORTED, why)
    try:
        return projector.context(session.add_context(said))
    except KeytermsTooOften as error:
        return projector.no_context(ConfigureCode.ALREADY_PENDING, str(error))


MAX_ECHO = 256  # longest excerpt of client text in an error frame
_encode = msgspec.json.Encoder().encode


class Projector:
    """Converts the recognition events of one connection into Deepgram's frames."""

    def __init__(
        self,
        request: ListenRequest,
        channels: int,
        request_id: str,
        created: str,
        model: ModelCard,
        *,
        receipts: StreamReceipts | None = None,
    ) -> None:
        self.request = request
        self.receipts = receipts
        self.request_id = request_id
        self.warnings: Sequence[str] = ()  # about the audio, as `kind: sentence`; sent in `Metadata`
        self._channels = channels
        self._created = created
        self._model = model
        self._reports = request.step_results or request.stable_words or request.latency
        self._overlaps = request.utterances and channels > 1
        self._metadata = msgspec.Raw(_encode(ResultsMetadata(request_id, model.info, model.uuid)))
        self._transcripts = [Transcript(request.style, punctuated=request.punctuated_words) for _ in range(channels)]

    def frame(self, event: Event, timing: StepTiming | None = None, write_s: float = 0.0) -> bytes | None:
        """Return the frame of an event, or None if the client did not request this kind. Events must come in order.

        `timing` is that of the step that caused the event, `write_s` the time that the previous frame took to write.
        """
        frame: bytes | None = None
        match event:
            case Partial() | Final():
                frame = self._results(event, timing, write_s)
            case Correction():
                frame = self._correction(event)
            case SpeechStarted():
                started = SpeechStartedOut((event.channel, self._channels), _seconds(event.time_s))
                frame = _encode(started) if self.request.vad_events else None
            case UtteranceGap():
                frame = _encode(UtteranceEnd((event.channel, self._channels), _seconds(event.last_word_end_s)))
            case Closed():
                frame = self._summary(event)
            case StreamBroken():
                frame = _encode(Error(ErrorVariant.INTERNAL, "recognition failed on this stream"))
            case Silence() | Forked() | TurnAnswered():
                pass  # for streams of turns
            case _:
                assert_never(event)
        return frame

    @property
    def openings(self) -> tuple[tuple[str, ...], ...]:
        """Per channel, the words of the unfinished sentence that the next segment continues."""
        return tuple(transcript.opening for transcript in self._transcripts)

    def restore(self, openings: Sequence[tuple[str, ...]]) -> None:
        """Continue the unfinished sentences of an earlier connection's projector."""
        for transcript, opening in zip(self._transcripts, openings, strict=True):
            transcript.restore(opening)

    def complaint(self, description: str, text: str) -> bytes:
        """Return the error for an invalid text frame."""
        return _encode(Error(ErrorVariant.SCHEMA, description, text[:MAX_ECHO]))

    def undecodable(self, description: str) -> bytes:
        """Return the error for audio that cannot be decoded, which ends the stream."""
        return _encode(Error(ErrorVariant.DATA, description))

    def configured(self, keyterms: Sequence[str]) -> bytes:
        """Return the answer to a successful Configure, with the key terms in force."""
        return _encode(ConfigureSuccess(self.request_id, list(keyterms)))

    def not_configured(self, code: ConfigureCode, description: str) -> bytes:
        """Return the answer to a refused Configure."""
        return _encode(ConfigureFailure(self.request_id, code, description))

    def context(self, keyterms: Sequence[str]) -> bytes:
        """Return the answer to a Context, with the terms from what other speakers said."""
        return _encode(ContextSuccess(self.request_id, list(keyterms)))

    def no_context(self, code: ConfigureCode, description: str) -> bytes:
        """Return the answer to a refused Context."""
        return _encode(ContextFailure(self.request_id, code, description))

    def not_rewound(self, code: ConfigureCode, description: str) -> bytes:
        """Return the answer to a refused Rewind."""
        return _encode(RewindFailure(self.request_id, code, description))

    def _correction(self, event: Correction) -> bytes:
        channel, _ = self._transcripts[event.channel].correction(event.words, [word.text for word in event.before])
        return _encode(
            Results(
                (event.channel, self._channels),
                _seconds(event.start_s),
                _seconds(event.duration_s),
                is_final=True,
                speech_final=False,
                from_finalize=False,
                channel=channel,
                metadata=self._metadata,
                correction=True,
            )
        )

    def _results(self, event: Partial | Final, timing: StepTiming | None, write_s: float) -> bytes:
        transcript = self._transcripts[event.channel]
        if isinstance(event, Partial):
            reason = None
            channel, words = transcript.partial(event.words)
        else:
            reason = event.reason
            channel, words = transcript.final(event.words, ends=reason is not FinalReason.MAX_LEN)
        start_s, duration_s = _seconds(event.start_s), _seconds(event.duration_s)
        receipt: str | UnsetType = UNSET
        if self.receipts is not None and isinstance(event, Final):
            receipt = self.receipts.final(event, (start_s, duration_s), transcript.words)
        return _encode(
            Results(
                (event.channel, self._channels),
                start_s,
                duration_s,
                reason is not None,  # is_final
                reason is not None and reason is not FinalReason.MAX_LEN,  # speech_final
                reason is FinalReason.FINALIZE,  # from_finalize
                channel,
                self._metadata,
                self._report(event, words, timing, write_s) if self._reports else UNSET,
                event.overlap if self._overlaps and isinstance(event, Final) else UNSET,
                receipt,
            )
        )

    def _report(
        self, event: Partial | Final, words: int, timing: StepTiming | None, write_s: float
    ) -> StepReport | UnsetType:
        request = self.request
        stable = event.stable_words if isinstance(event, Partial) else words
        if timing is None:
            return StepReport(stable) if request.stable_words else UNSET
        parts = latency(timing, write_s) if request.latency else UNSET
        if not request.step_results:
            return StepReport(stable, latency=parts)
        delay_s = event.endpoint_delay_s if isinstance(event, Final) else None
        return StepReport(
            stable,
            _seconds(event.start_s + event.duration_s),
            _ms(timing.queue_wait_s),
            _ms(timing.step_s),
            _ms(timing.decode_s),
            UNSET if delay_s is None else round(delay_s * 1e3, 1),
            parts,
        )

    def _summary(self, event: Closed) -> bytes:
        model = self._model
        has_audio = event.audio_s > 0
        summary = Metadata(
            transaction_key="deprecated",
            request_id=self.request_id,
            sha256="incomplete",
            created=self._created,
            duration=_seconds(event.audio_s),
            channels=self._channels,
            models=[model.uuid] if has_audio else UNSET,
            model_info={model.uuid: model.info} if has_audio else UNSET,
            warnings=warned("audio", self.warnings),
        )
        if self.receipts is not None and event.audio is not None:
            summary.receipt = self.receipts.end(event.audio, event.reason)
        return _encode(summary)


def latency(timing: StepTiming, write_s: float) -> Latency:
    """Return the parts of a result's latency; `write_s` is that of the previous result."""
    return Latency(
        queue_ms=_ms(timing.queue_wait_s),
        step_ms=_ms(timing.step_s),
        handover_ms=_ms(timing.handover_s),
        decode_ms=_ms(timing.decode_s),
        write_ms=_ms(write_s),
        batch=timing.rows,
    )


def _seconds(value: float) -> float:
    """Round to microseconds: exact enough for a sample at any rate, without floating-point noise on the wire."""
    return round(value * 1e6) / 1e6  # by way of a whole number: half the time of `round(value, 6)`


def _ms(seconds: float) -> float:
    return round(seconds * 1e6) / 1e3
