"""The server's messages as typed values: Deepgram's live frames (`Results`, `Metadata`, …).

Owns the shapes that a client reads; fields that it does not need are skipped by the decoder.
Knows no socket.
"""

from __future__ import annotations

import msgspec

from tutti_asr_client.errors import BadMessage


class Word(msgspec.Struct, frozen=True):
    """One recognised word; `start` and `end` are seconds of the stream."""

    word: str
    start: float
    end: float
    confidence: float = 0.0
    punctuated_word: str | msgspec.UnsetType = msgspec.UNSET


class Alternative(msgspec.Struct, frozen=True):
    """One reading of a segment."""

    transcript: str
    confidence: float = 0.0
    words: tuple[Word, ...] = ()


class Channel(msgspec.Struct, frozen=True):
    """The readings of one channel, best first."""

    alternatives: tuple[Alternative, ...]


class StepTimings(msgspec.Struct, frozen=True):
    """What tutti adds: stable words under `stable_words=true`, and where the step's time went under `step_results`."""

    audio_processed_s: float = 0.0
    queue_wait_ms: float = 0.0
    step_ms: float = 0.0
    decode_ms: float = 0.0
    stable_words: int | None = None
    endpoint_delay_ms: float | None = None


class Results(msgspec.Struct, frozen=True, tag="Results"):
    """A partial (`is_final` false) or final text of the segment that begins at `start`."""

    channel: Channel
    start: float = 0.0
    duration: float = 0.0
    is_final: bool = False
    speech_final: bool = False
    from_finalize: bool = False
    channel_index: tuple[int, int] = (0, 1)
    tutti: StepTimings | None = None

    @property
    def cursor_s(self) -> float:
        """Seconds of the stream that this message accounts for."""
        return self.start + self.duration

    @property
    def text(self) -> str:
        """The best transcript; empty when nothing was said."""
        return self.channel.alternatives[0].transcript if self.channel.alternatives else ""

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the best transcript."""
        return self.channel.alternatives[0].words if self.channel.alternatives else ()


class Metadata(msgspec.Struct, frozen=True, tag="Metadata"):
    """The last message before the close: what the stream was."""

    request_id: str = ""
    duration: float = 0.0
    channels: int = 1


class SpeechStarted(msgspec.Struct, frozen=True, tag="SpeechStarted"):
    """Speech begins at `timestamp`."""

    timestamp: float
    channel: tuple[int, ...] = (0, 1)


class UtteranceEnd(msgspec.Struct, frozen=True, tag="UtteranceEnd"):
    """No word since `last_word_end` for as long as was asked for."""

    last_word_end: float
    channel: tuple[int, ...] = (0, 1)


class Error(msgspec.Struct, frozen=True, tag="Error"):
    """The server could not use something that we sent; the stream goes on."""

    description: str = ""
    variant: str = ""
    message: str = ""


class ConfigureSuccess(msgspec.Struct, frozen=True, tag="ConfigureSuccess"):
    """The key terms that hold from now on."""

    keyterms: tuple[str, ...] = ()


class ConfigureFailure(msgspec.Struct, frozen=True, tag="ConfigureFailure"):
    """The key terms could not be changed; the old ones stay."""

    code: str = ""
    description: str = ""


class Ticket(msgspec.Struct, frozen=True, tag="Ticket"):
    """Under `resumable=true`: lets any replica go on from `audio_s`, after `finals` finals of this stream."""

    ticket: str
    audio_s: float
    finals: int = 0


class Resumed(msgspec.Struct, frozen=True, tag="Resumed"):
    """The stream goes on; its audio is wanted from `audio_s` on."""

    audio_s: float


class ResumeRefused(msgspec.Struct, frozen=True, tag="ResumeRefused"):
    """The ticket is of no use here; the stream is open, and knows nothing of what was before."""

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
    """The message in one text frame; None for a type that this client does not know.

    Raises:
        BadMessage: not JSON, no `type`, or a known type with another shape.
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
