"""The server's messages (Deepgram's live frames `Results`, `Metadata`, …) as typed values.

Contains only the fields that a client reads; the decoder skips all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from tutti_asr_client.errors import BadMessage

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"  # Hiragana, Katakana, Han
_BETWEEN = re.compile(f"(?<=[{_UNSPACED}，。？]) (?=[{_UNSPACED}])")  # or after a punctuation mark


class Word(msgspec.Struct, frozen=True):
    """One recognized word; `start` and `end` are stream times in seconds."""

    word: str
    start: float
    end: float
    confidence: float = 0.0
    punctuated_word: str | msgspec.UnsetType = msgspec.UNSET
    speaker: int | msgspec.UnsetType = msgspec.UNSET  # with `diarize`


class Alternative(msgspec.Struct, frozen=True):
    """One transcript of a segment."""

    transcript: str
    confidence: float = 0.0
    words: tuple[Word, ...] = ()


class Channel(msgspec.Struct, frozen=True):
    """The transcripts of one channel, best first."""

    alternatives: tuple[Alternative, ...]


class StepTimings(msgspec.Struct, frozen=True):
    """tutti extension: stable words with `stable_words=true`, durations of the step with `step_results`."""

    audio_processed_s: float = 0.0
    queue_wait_ms: float = 0.0
    step_ms: float = 0.0
    decode_ms: float = 0.0
    stable_words: int | None = None
    endpoint_delay_ms: float | None = None


class Results(msgspec.Struct, frozen=True, tag="Results"):
    """A partial (`is_final` false) or final text of the segment that starts at `start`."""

    channel: Channel
    start: float = 0.0
    duration: float = 0.0
    is_final: bool = False
    speech_final: bool = False
    from_finalize: bool = False
    channel_index: tuple[int, int] = (0, 1)
    tutti: StepTimings | None = None
    correction: bool = False  # an answer to `rewind`: it replaces all words from `start` on

    @property
    def cursor_s(self) -> float:
        """End of the audio that this message covers, as stream time in seconds."""
        return self.start + self.duration

    @property
    def text(self) -> str:
        """The best transcript; empty if there was no speech."""
        return self.channel.alternatives[0].transcript if self.channel.alternatives else ""

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the best transcript."""
        return self.channel.alternatives[0].words if self.channel.alternatives else ()


class Metadata(msgspec.Struct, frozen=True, tag="Metadata"):
    """Summary of the stream, the last message before the close."""

    request_id: str = ""
    duration: float = 0.0
    channels: int = 1


class SpeechStarted(msgspec.Struct, frozen=True, tag="SpeechStarted"):
    """Speech started at `timestamp`."""

    timestamp: float
    channel: tuple[int, ...] = (0, 1)


class UtteranceEnd(msgspec.Struct, frozen=True, tag="UtteranceEnd"):
    """No word followed `last_word_end` within the query's `utterance_end_ms`."""

    last_word_end: float
    channel: tuple[int, ...] = (0, 1)


class Error(msgspec.Struct, frozen=True, tag="Error"):
    """The server reports an invalid message of the client, and the stream continues; or an error before a close."""

    description: str = ""
    variant: str = ""
    message: str = ""


class ConfigureSuccess(msgspec.Struct, frozen=True, tag="ConfigureSuccess"):
    """Answer to Configure: the key terms now in force."""

    keyterms: tuple[str, ...] = ()


class ContextSuccess(msgspec.Struct, frozen=True, tag="ContextSuccess"):
    """Answer to Context: the words of other speakers that are favored now."""

    keyterms: tuple[str, ...] = ()


class ContextFailure(msgspec.Struct, frozen=True, tag="ContextFailure"):
    """Answer to Context: refused; the text has no effect."""

    code: str = ""
    description: str = ""


class RewindFailure(msgspec.Struct, frozen=True, tag="RewindFailure"):
    """Answer to Rewind: refused; earlier finals are unchanged."""

    code: str = ""
    description: str = ""


class ConfigureFailure(msgspec.Struct, frozen=True, tag="ConfigureFailure"):
    """Answer to Configure: refused; the key terms are unchanged."""

    code: str = ""
    description: str = ""


class Ticket(msgspec.Struct, frozen=True, tag="Ticket"):
    """With `resumable=true`: state from which any replica can continue at `audio_s`, after `finals` finals."""

    ticket: str
    audio_s: float
    finals: int = 0


class Resumed(msgspec.Struct, frozen=True, tag="Resumed"):
    """Answer to Resume: the stream continues; send its audio from `audio_s` on."""

    audio_s: float


class ResumeRefused(msgspec.Struct, frozen=True, tag="ResumeRefused"):
    """Answer to Resume: the ticket was refused; the stream is open, and the server treats it as new."""

    code: str = ""
    description: str = ""


Message = (
    Results
    | Metadata
    | SpeechStarted
    | UtteranceEnd
    | Error
    | ConfigureSuccess
    | ConfigureFailure
    | ContextSuccess
    | ContextFailure
    | RewindFailure
    | Ticket
    | Resumed
    | ResumeRefused
)


class _Tag(msgspec.Struct):
    type: str


_KNOWN = frozenset(kind.__name__ for kind in Message.__args__)
_message: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_tag = msgspec.json.Decoder(_Tag)


def decode(frame: str | bytes) -> Message | None:
    """Return the message in a text frame, or None for an unknown type.

    Raises:
        BadMessage: not JSON, no `type`, or a known type with wrong fields.
    """
    try:
        return _message.decode(frame)
    except msgspec.DecodeError as error:
        try:
            known = _tag.decode(frame).type in _KNOWN
        except msgspec.DecodeError:
            known = True
        if known:
            raise BadMessage(str(error)) from error
        return None


Timed = TypeVar("Timed", bound=Results | SpeechStarted | UtteranceEnd)


def shifted(message: Timed, seconds: float) -> Timed:
    """Return the message with `seconds` added to all its times."""
    if not seconds:
        return message
    change = msgspec.structs.replace
    if isinstance(message, SpeechStarted):
        return change(message, timestamp=message.timestamp + seconds)
    if isinstance(message, UtteranceEnd):
        return change(message, last_word_end=message.last_word_end + seconds)
    readings = tuple(_shifted(reading, seconds) for reading in message.channel.alternatives)
    timings = message.tutti
    if timings is not None:
        timings = change(timings, audio_processed_s=timings.audio_processed_s + seconds)
    channel = change(message.channel, alternatives=readings)
    return change(message, start=message.start + seconds, channel=channel, tutti=timings)


def _shifted(reading: Alternative, seconds: float) -> Alternative:
    change = msgspec.structs.replace
    words = tuple(change(word, start=word.start + seconds, end=word.end + seconds) for word in reading.words)
    return change(reading, words=words)


def without_words_before(results: Results, seconds: float) -> Results:
    """Return the part of a result after `seconds`: the words whose middle is later."""
    part = _with_words(results, lambda middle_s: middle_s > seconds)
    return msgspec.structs.replace(part, start=seconds, duration=results.cursor_s - seconds)


def without_words_from(results: Results, seconds: float) -> Results:
    """Return the part of a result before `seconds`: the words whose middle is earlier; all if it ends before."""
    if results.cursor_s <= seconds:
        return results
    part = _with_words(results, lambda middle_s: middle_s < seconds)
    return msgspec.structs.replace(part, duration=seconds - results.start)


def _with_words(results: Results, keeps: Callable[[float], bool]) -> Results:
    change = msgspec.structs.replace
    readings = []
    for reading in results.channel.alternatives:
        words = tuple(word for word in reading.words if keeps((word.start + word.end) / 2))
        readings.append(change(reading, words=words, transcript=joined(shown(word) for word in words)))
    return change(results, channel=change(results.channel, alternatives=tuple(readings)))


def shown(word: Word) -> str:
    """Return a word for display, with punctuation and capitals if the client requested them."""
    return word.word if word.punctuated_word is msgspec.UNSET else word.punctuated_word


def joined(texts: Iterable[str]) -> str:
    """Join texts with spaces, except between two of scripts that are written without spaces."""
    text = " ".join(texts)
    return text if text.isascii() else _BETWEEN.sub("", text)
