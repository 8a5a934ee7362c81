"""Adapter of OpenAI's Realtime transcription: base64 audio in JSON in, deltas that only append out.

Deltas are new stable words. A turn ends after silence (`turn_detection`) or with the client's `commit`; with
`turn_detection` null, segments that the recognizer ends by itself stay in one item until the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from model.ctc.words import Word
from server.errors import BadFrame, CloseReason
from server.models.selection import ModelNames, tag_of
from server.protocols.features import control_text
from server.protocols.openai.items import MAX_CHARACTERS, Item, Items
from server.protocols.openai.messages import (
    COMPLETED,
    DELTA,
    MAX_AUDIO_BYTES,
    MAX_EVENT_BYTES,
    ClientEvent,
    ErrorType,
    RealtimeError,
    ServerEvent,
    Usage,
    check_fields,
    decode_audio,
    parse_event,
)
from server.protocols.openai.settings import BadField, ErrorCode, SessionSettings
from server.recognition.events import (
    Closed,
    Event,
    Final,
    FinalReason,
    Partial,
    SpeechStarted,
    StepTiming,
    StreamBroken,
)
from server.recognition.messages import ChooseLanguage, Endpoint
from server.streaming.adapter import Action, Actions, Bias, Flush, PlainInput, SendFrame, Switch
from server.streaming.outbox import FrameKind
from server.streaming.transport import MessageLimit

PIECE_BYTES = 4_096  # of audio decoded at a time
MIN_COMMIT_S = 0.1  # Source: the limit of OpenAI's service
FIRST_WORD_S = 1.0  # a turn without words is silence after this time; until then its voice may have just begun
_ENDS = {
    CloseReason.IDLE: (ErrorCode.SESSION_EXPIRED, "no audio or event received within the idle timeout"),
    CloseReason.TOO_LONG: (ErrorCode.SESSION_EXPIRED, "the session reached the maximum duration of this server"),
}
"""Close reasons that an `error` event precedes. A drain sends none: LiveKit's plugin would not reconnect after one."""
_encode = msgspec.json.Encoder().encode


class RealtimeAdapter:
    """Adapter of one session."""

    def __init__(
        self,
        session_id: str,
        settings: SessionSettings,
        names: ModelNames,
        *,
        model_rate: int,
        min_silence_ms: float,
        lenient: bool = False,
    ) -> None:
        """`min_silence_ms` is the shortest silence that ends a turn; `lenient`: ignore unsupported settings."""
        self._lenient = lenient
        self._id = session_id
        self._settings = settings
        self._names = names
        self._model_rate = model_rate
        self._min_silence_ms = min_silence_ms
        self._input = self._new_input()
        self._bias_before: tuple[tuple[str, ...], str] = ((), "")  # keywords and prompt in force before the last update
        self._items = Items(session_id)
        self._events = 0
        self._received_before_s = 0.0  # seconds of audio received in earlier formats
        self._committed_s = 0.0  # stream time up to which audio was committed or cleared

    def opened(self) -> Actions:
        """Send `session.created`."""
        return (self._send("session.created", session=self._description()),)

    @property
    def limit(self) -> MessageLimit:
        """The largest message, and the event that precedes the close after a larger one."""
        message = f"audio: message too large; at most {MAX_AUDIO_BYTES} bytes (15 MiB) per append: send several"
        error = RealtimeError(message, code=ErrorCode.INVALID_VALUE, param="audio")
        return MessageLimit(MAX_EVENT_BYTES, _encode(ServerEvent(f"event_{self._id}toolarge", "error", error=error)))

    def binary(self, chunk: bytes) -> Actions:
        """Handle an event in a binary frame; refuse others: in this protocol audio is base64."""
        if (text := control_text(chunk)) is not None:
            return self.text(text)
        return (self._event_error(None, BadFrame("binary frames are not supported; send input_audio_buffer.append")),)

    def text(self, text: str) -> Actions:
        """Handle a client event; an invalid one is answered with an error, and the session continues."""
        event: ClientEvent | None = None
        try:
            event = parse_event(text)
            check_fields(event, text)
            return self._handle(event)
        except BadFrame as error:
            return (self._event_error(event, error),)

    def event(self, event: Event, timing: StepTiming | None) -> Actions:  # noqa: ARG002 - an adapter's
        """Convert a recognition event into frames."""
        match event:
            case SpeechStarted(time_s=time_s):
                return self._speech_started(time_s)
            case Partial(words=words, stable_words=stable):
                return self._grow(self._items.new_stable(words, stable))
            case Final():
                return tuple(self._final(event))
            case Closed(reason=reason):
                return tuple(self._ended(reason))
            case StreamBroken():
                return tuple(self._broken())
            case _:
                return ()

    def bias_refused(self, why: str) -> Actions:
        """Send an error; the keywords and the prompt before stay in force."""
        param = f"session.audio.input.transcription.{'keywords' if self._settings.keywords else 'prompt'}"
        keywords, prompt = self._bias_before
        self._settings = replace(self._settings, keywords=keywords, prompt=prompt)
        return (self._send("error", error=RealtimeError(f"{param}: {why}", code=ErrorCode.INVALID_VALUE, param=param)),)

    # Client to server

    def _handle(self, event: ClientEvent) -> Actions:
        match event.type:
            case "input_audio_buffer.append":
                return self._append(decode_audio(event.audio))
            case "input_audio_buffer.commit":
                return tuple(self._commit())
            case "input_audio_buffer.clear":
                return tuple(self._clear())
            case _:
                return self._update(event)

    def _append(self, audio: bytes) -> Iterator[Action]:
        """Decode the audio in pieces, at the rate of the connection: an append may hold minutes of audio."""
        for start in range(0, len(audio), PIECE_BYTES):
            yield self._input.read(audio[start : start + PIECE_BYTES])

    def _commit(self) -> Iterator[Action]:
        waiting_s = self._received_s - self._committed_s
        if waiting_s < MIN_COMMIT_S:
            raise BadFrame(
                f"buffer too small: {waiting_s * 1e3:.2f} ms of audio; "
                f"append at least {MIN_COMMIT_S * 1e3:.0f} ms before a commit"
            )
        yield from self._input.tail()
        self._committed_s = self._received_s
        yield from self._speech_stopped(self._received_s)
        previous = self._items.last_committed
        item = self._items.commit()
        yield self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)
        yield Flush()

    def _clear(self) -> Iterator[Action]:
        yield from self._end_input()  # with half a sample of an append that had an odd number of bytes
        self._committed_s = self._received_s
        yield from self._speech_stopped(self._received_s)
        self._items.clear()
        yield self._send("input_audio_buffer.cleared")
        yield Flush()

    def _update(self, event: ClientEvent) -> Actions:
        if not event.session:
            raise BadFrame("session: missing; send the settings to change")
        after = self._settings.updated(event.session, self._names, lenient=self._lenient)
        if after.served != self._settings.served:
            return (self._other_model(event, after),)
        return self._apply(after)

    def _apply(self, after: SessionSettings) -> Iterator[Action]:
        """Apply an update step by step, as its description at the end has only what was not refused."""
        before, self._settings = self._settings, after
        if (before.format, before.rate) != (self._settings.format, self._settings.rate):
            yield from self._end_input()
        if (before.keywords, before.prompt) != (self._settings.keywords, self._settings.prompt):
            self._bias_before = (before.keywords, before.prompt)
            yield Bias(self._settings.keywords, self._settings.prompt)
        if (before.silence_ms, before.scored_end) != (self._settings.silence_ms, self._settings.scored_end):
            yield Endpoint(self._settings.silence_ms, self._settings.scored_end)
        if before.language != self._settings.language:
            yield ChooseLanguage(self._settings.language and tag_of(self._settings.language))
        if self._settings.turns is None:
            yield from self._speech_stopped(self._received_s)
        yield self._send("session.updated", session=self._description())

    def _other_model(self, event: ClientEvent, after: SessionSettings) -> Switch:
        """Switch to the model of the settings, which take effect with it."""
        before = self._settings
        if self._received_s:
            field = "model" if after.language == before.language else "language"
            raise BadFrame(
                f"session.audio.input.transcription.{field}: cannot change from model {before.served!r} to "
                f"{after.served!r} after audio; open a new session"
            )
        done, refused = partial(self._switched, after), partial(self._not_switched, event)
        return Switch(after.served, after.language, done, refused)

    def _switched(self, settings: SessionSettings, model_rate: int) -> Iterator[Action]:
        self._settings, self._model_rate = settings, model_rate
        self._input = self._new_input()
        self._bias_before = ((), "")
        if settings.keywords or settings.prompt:
            yield Bias(settings.keywords, settings.prompt)
        yield Endpoint(settings.silence_ms, settings.scored_end)
        yield self._send("session.updated", session=self._description())

    def _not_switched(self, event: ClientEvent, why: str) -> Actions:
        return (self._event_error(event, BadFrame(f"session.audio.input.transcription.model: {why}")),)

    # Recognition to client

    def _speech_started(self, time_s: float) -> Actions:
        item = None if self._items.waiting or self._settings.turns is None else self._items.ensure()
        if item is None or item.started_s is not None:
            return ()
        item.started_s = time_s = max(time_s, self._committed_s)
        return (self._send("input_audio_buffer.speech_started", audio_start_ms=round(time_s * 1e3), item_id=item.id),)

    def _speech_stopped(self, time_s: float) -> Iterator[Action]:
        """End the open item's speech, if its start was sent: each start has an end, also in the midst of speech."""
        item = self._items.current
        if item is not None and item.started_s is not None:
            item.started_s = None
            yield self._send("input_audio_buffer.speech_stopped", audio_end_ms=round(time_s * 1e3), item_id=item.id)

    def _grow(self, words: Sequence[Word]) -> Actions:
        if not words or self._items.discarding:
            return ()
        started = self._speech_started(words[0].start_s)  # voice that continues after a commit has no start of its own
        item = self._items.ensure()
        return (*started, self._send(DELTA, item_id=item.id, content_index=0, delta=item.grow(words)))

    def _final(self, final: Final) -> Iterator[Action]:
        end_s = final.start_s + final.duration_s
        yield from self._grow(self._items.remaining(final.words))
        if final.reason is FinalReason.FINALIZE:
            item = self._items.flushed(end_s)
            if item is not None:
                yield self._completed(item)
        elif not self._items.waiting and self._turn_ends(final):
            yield from self._end_turn(end_s)

    def _turn_ends(self, final: Final) -> bool:
        item = self._items.current
        too_long = item is not None and item.characters > MAX_CHARACTERS
        silence = final.reason is FinalReason.ENDPOINT and self._settings.turns is not None
        if item is not None and item.started_s is not None and not item.characters:
            silence &= final.start_s + final.duration_s - item.started_s >= FIRST_WORD_S
        return too_long or silence or final.reason is FinalReason.CLOSE

    def _end_turn(self, end_s: float) -> Iterator[Action]:
        previous = self._items.last_committed
        yield from self._speech_stopped(end_s)
        item = self._items.end_turn(end_s)
        if item is None:
            return
        self._committed_s = max(self._committed_s, end_s)
        yield self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)
        yield self._completed(item)

    def _ended(self, reason: CloseReason) -> Iterator[Action]:
        for item in self._items.abandoned():
            yield self._completed(item)
        if reason in _ENDS or reason is CloseReason.DRAIN:
            yield from self._end_turn(self._received_s)  # text of a finished segment, which no final follows
        if reason in _ENDS:
            code, message = _ENDS[reason]
            yield self._send("error", error=RealtimeError(message, ErrorType.SERVER, code))

    def _broken(self) -> Iterator[Action]:
        message = "recognition failed on this session"
        item = self._items.current
        if item is not None:
            failed = "conversation.item.input_audio_transcription.failed"
            yield self._send(failed, item_id=item.id, content_index=0, error=RealtimeError(message, ErrorType.SERVER))
        yield self._send("error", error=RealtimeError(message, ErrorType.SERVER, ErrorCode.SERVER_ERROR))

    # Frames

    def _completed(self, item: Item) -> SendFrame:
        usage = Usage(round(item.audio_s, 3))
        text = item.text
        return self._send(COMPLETED, final=True, item_id=item.id, content_index=0, transcript=text, usage=usage)

    def _event_error(self, event: ClientEvent | None, error: BadFrame) -> SendFrame:
        message = str(error)
        field, colon, _ = message.partition(": ")
        code = ErrorCode.COMMIT_EMPTY if field == "buffer too small" else ErrorCode.INVALID_VALUE
        param = field if colon and " " not in field else None
        if isinstance(error, BadField):
            code, param = error.code, error.param
        event_id = event.event_id if event else None
        return self._send("error", error=RealtimeError(message, code=code, param=param, event_id=event_id))

    def _send(self, kind: str, *, final: bool = False, **fields: Any) -> SendFrame:
        """Encode an event. None has the kind INTERIM, which may be dropped: the text would lose its delta."""
        self._events += 1
        event_id = f"event_{self._id}{self._events:06d}"
        payload = _encode(ServerEvent(event_id, kind, **fields))
        return SendFrame(payload, FrameKind.FINAL if final else FrameKind.OTHER, flushed=final)

    def _description(self) -> dict[str, object]:
        return self._settings.described("sess_" + self._id, self._min_silence_ms)

    def _end_input(self) -> Iterator[Action]:
        """Push what is buffered; the audio that follows is in the format of the settings."""
        yield from self._input.tail()
        self._received_before_s = self._received_s
        self._input = self._new_input()

    def _new_input(self) -> PlainInput:
        return PlainInput(self._settings.codec, self._settings.rate, self._model_rate)

    @property
    def _received_s(self) -> float:
        return self._received_before_s + self._input.received_s
