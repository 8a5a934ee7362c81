"""Deepgram's frames to the client: events in, JSON out. Pure. Source: protocols.md 3.6 and 3.7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from server.deepgram_messages import (
    Alternative,
    Alternatives,
    ConfigureFailure,
    ConfigureSuccess,
    Error,
    Metadata,
    ModelCard,
    Results,
    ResultsMetadata,
    SpeechStartedOut,
    StepReport,
    UtteranceEnd,
    WordOut,
)
from server.deepgram_query import ListenRequest
from server.events import (
    Closed,
    Event,
    Final,
    FinalReason,
    Partial,
    SpeechStarted,
    StepTiming,
    StreamBroken,
    UtteranceGap,
)
from server.text_format import FormattedWord, Sentences

MAX_ECHO = 256  # characters of a client's own text that an error frame repeats
_encode = msgspec.json.Encoder().encode


class Projector:
    """Projects the events of one connection."""

    def __init__(self, request: ListenRequest, channels: int, request_id: str, created: str, model: ModelCard) -> None:
        self._request = request
        self._channels = channels
        self._request_id = request_id
        self._created = created
        self._model = model
        self._metadata = msgspec.Raw(_encode(ResultsMetadata(request_id, model.info, model.uuid)))
        self._sentences = [Sentences(request.style) for _ in range(channels)]

    def frame(self, event: Event, timing: StepTiming | None = None) -> bytes | None:
        """Return the frame for an event, or None where this client did not ask for it. Events come in their order."""
        match event:
            case Partial() | Final():
                return self._results(event, timing)
            case SpeechStarted():
                started = SpeechStartedOut((event.channel, self._channels), _seconds(event.time_s))
                return _encode(started) if self._request.vad_events else None
            case UtteranceGap():
                return _encode(UtteranceEnd((event.channel, self._channels), _seconds(event.last_word_end_s)))
            case Closed():
                return self._summary(event)
            case StreamBroken():
                return _encode(Error("InternalError", "recognition failed on this stream"))
            case _:
                assert_never(event)

    def complaint(self, description: str, text: str) -> bytes:
        """Answer a text frame that means nothing."""
        return _encode(Error("SchemaError", description, text[:MAX_ECHO]))

    def configured(self, keyterms: Sequence[str]) -> bytes:
        """Answer a change of settings with the key terms that hold now."""
        return _encode(ConfigureSuccess(self._request_id, list(keyterms)))

    def not_configured(self, code: str, description: str) -> bytes:
        """Answer a change of settings that cannot be made."""
        return _encode(ConfigureFailure(self._request_id, code, description))

    def _results(self, event: Partial | Final, timing: StepTiming | None) -> bytes:
        reason = event.reason if isinstance(event, Final) else None
        words = self._formatted(event)
        results = Results(
            channel_index=(event.channel, self._channels),
            start=_seconds(event.start_s),
            duration=_seconds(event.duration_s),
            is_final=reason is not None,
            speech_final=reason not in (None, FinalReason.MAX_LEN),
            from_finalize=reason is FinalReason.FINALIZE,
            channel=Alternatives((alternative(words, self._request.punctuated_words),)),
            metadata=self._metadata,
            tutti=self._report(event, len(words), timing),
        )
        return _encode(results)

    def _formatted(self, event: Partial | Final) -> tuple[FormattedWord, ...]:
        sentences = self._sentences[event.channel]
        if isinstance(event, Final):
            return sentences.final(event.words, ends=event.reason is not FinalReason.MAX_LEN)
        return sentences.partial(event.words)

    def _report(self, event: Partial | Final, words: int, timing: StepTiming | None) -> StepReport | UnsetType:
        stable = event.stable_words if isinstance(event, Partial) else words
        if not self._request.step_results or timing is None:
            return StepReport(stable) if self._request.stable_words else UNSET
        delay_s = event.endpoint_delay_s if isinstance(event, Final) else None
        return StepReport(
            stable_words=stable,
            audio_processed_s=_seconds(event.start_s + event.duration_s),
            queue_wait_ms=round(timing.queue_wait_s * 1e3, 3),
            step_ms=round(timing.step_s * 1e3, 3),
            decode_ms=round(timing.decode_s * 1e3, 3),
            endpoint_delay_ms=UNSET if delay_s is None else round(delay_s * 1e3, 1),
        )

    def _summary(self, event: Closed) -> bytes:
        model = self._model
        heard = event.audio_s > 0
        summary = Metadata(
            transaction_key="deprecated",
            request_id=self._request_id,
            sha256="incomplete",
            created=self._created,
            duration=_seconds(event.audio_s),
            channels=self._channels,
            models=[model.uuid] if heard else UNSET,
            model_info={model.uuid: model.info} if heard else UNSET,
        )
        return _encode(summary)


def alternative(words: Sequence[FormattedWord], punctuated: bool) -> Alternative:
    """Build the transcript of some words, confidence their mean."""
    out = [
        WordOut(
            formatted.word.text,
            round(formatted.word.start_s, 3),
            round(formatted.word.end_s, 3),
            round(formatted.word.confidence, 4),
            formatted.text if punctuated else UNSET,
        )
        for formatted in words
    ]
    confidence = sum(formatted.word.confidence for formatted in words) / len(words) if words else 0.0
    return Alternative(" ".join(formatted.text for formatted in words), round(confidence, 4), out)


def _seconds(value: float) -> float:
    """Microseconds are enough to name a sample at any rate, and keep binary noise off the wire."""
    return round(value, 6)
