"""Recognition events as Deepgram's frames: `Results`, `UtteranceEnd`, `Metadata` and answers to control messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from server.models.loading import ModelCard
from server.protocols.deepgram.messages import (
    FAILURES,
    Configure,
    ConfigureCode,
    ConfigureSuccess,
    Context,
    ContextSuccess,
    Error,
    ErrorVariant,
    Latency,
    Metadata,
    Results,
    ResultsMetadata,
    Rewind,
    SpeechStartedOut,
    StepReport,
    UtteranceEnd,
    Warned,
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
        self._fallbacks: Counter[str] = Counter()  # finals by the reason why they have the first pass's text
        self._created = created
        self._model = model
        self._reports = request.options.every_step or request.options.tell_stable or request.latency
        self._overlaps = request.options.spoken_order and channels > 1
        self._metadata = msgspec.Raw(_encode(ResultsMetadata(request_id, model.info, model.uuid)))
        self._transcripts = [Transcript(request.style, punctuated=request.style.formats) for _ in range(channels)]

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
                frame = _encode(started) if self.request.options.speech_events else None
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

    def failure(self, message: type[Configure | Context | Rewind], code: ConfigureCode, description: str) -> bytes:
        """Return the answer to a message of this kind that was refused."""
        return _encode(FAILURES[message](self.request_id, code, description))

    def context(self, keyterms: Sequence[str]) -> bytes:
        """Return the answer to a Context, with the terms from what other speakers said."""
        return _encode(ContextSuccess(self.request_id, list(keyterms)))

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
        results = Results(
            (event.channel, self._channels),
            _seconds(event.start_s),
            _seconds(event.duration_s),
            reason is not None,  # is_final
            _ends_speech(event),  # speech_final
            reason is FinalReason.FINALIZE,  # from_finalize
            channel,
            self._metadata,
            self._report(event, words, timing, write_s) if self._reports else UNSET,
            event.overlap if self._overlaps and isinstance(event, Final) else UNSET,
        )
        if isinstance(event, Final) and event.fallback is not None:
            results.second_pass = event.fallback
            self._fallbacks[event.fallback] += 1
        if self.receipts is not None and isinstance(event, Final):
            results.receipt = self.receipts.final(event, _encode(results), transcript.words)
        return _encode(results)

    def _report(
        self, event: Partial | Final, words: int, timing: StepTiming | None, write_s: float
    ) -> StepReport | UnsetType:
        request = self.request
        stable = words
        if isinstance(event, Partial):
            stable = self._transcripts[event.channel].stable(event.words, event.stable_words)
        if timing is None:
            return StepReport(stable) if request.options.tell_stable else UNSET
        parts = latency(timing, write_s) if request.latency else UNSET
        if not request.options.every_step:
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

    def _of_finals(self) -> list[Warned]:
        """Return a warning for each reason why finals have the text of the first pass instead of the second's."""
        return [
            Warned("finals", reason, f"{reason}: the text of the first pass was sent in {count} finals")
            for reason, count in self._fallbacks.items()
        ]

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
            warnings=[*(warned("audio", self.warnings) or ()), *self._of_finals()] or UNSET,
            extra=self.request.extra or UNSET,
            other_voice_words=event.other_words if self.request.options.listens else UNSET,
        )
        if self.receipts is not None and event.audio is not None:
            summary.receipt = self.receipts.end(event.audio, _encode(summary), event.reason)
        return _encode(summary)


def _ends_speech(event: Partial | Final) -> bool:
    """Whether speech has ended here: not where nothing was said, since new speech may have begun in the meantime."""
    if isinstance(event, Partial) or event.reason is FinalReason.MAX_LEN:
        return False
    return bool(event.words) or event.reason is not FinalReason.ENDPOINT


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
