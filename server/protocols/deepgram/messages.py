"""Messages of Deepgram's protocol in both directions, and the parser of client frames. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import get_args

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame
from server.protocols.features import NOTHING, problem_of


class WordOut(msgspec.Struct):
    """One word with absolute stream times in seconds."""

    word: str
    start: float
    end: float
    confidence: float
    punctuated_word: str | UnsetType = UNSET
    language: str | UnsetType = UNSET  # that a model of several languages detected
    speaker: int | UnsetType = UNSET
    speaker_confidence: float | UnsetType = UNSET  # of uploads
    other_voice: bool | UnsetType = UNSET  # ours: not the voice that the stream listens to


class UtteranceOut(msgspec.Struct):
    """What one channel of a recording said without a longer pause; `overlap` (ours): another one spoke, too."""

    start: float
    end: float
    confidence: float
    channel: int
    transcript: str
    words: list[WordOut]
    id: str
    speaker: int | UnsetType = UNSET
    overlap: bool | UnsetType = UNSET


class Sentence(msgspec.Struct):
    """A sentence of a paragraph."""

    text: str
    start: float
    end: float


class Paragraph(msgspec.Struct):
    """Sentences of one speaker."""

    sentences: list[Sentence]
    num_words: int
    start: float
    end: float
    speaker: int | UnsetType = UNSET


class Paragraphs(msgspec.Struct):
    """The paragraphs of a channel of a recording, and their text."""

    transcript: str
    paragraphs: list[Paragraph]


class Alternative(msgspec.Struct):
    """The only transcript of a result."""

    transcript: str
    confidence: float
    words: list[WordOut]
    languages: list[str] | UnsetType = UNSET  # of the words, that of most words first
    paragraphs: Paragraphs | UnsetType = UNSET


class Alternatives(msgspec.Struct):
    """The transcript of one channel."""

    alternatives: tuple[Alternative]
    detected_language: str | UnsetType = UNSET  # the last one


class Latency(msgspec.Struct):
    """Latency of a result, opt-in by `latency=true`, as consecutive parts in milliseconds.

    They cover the time from the arrival of the last sample that the result needs until its frame is written, except
    cutting audio into steps (microseconds). A frame cannot contain its own write time: `write_ms` is that of the
    connection's previous result, 0 in the first.
    """

    queue_ms: float  # from the step being ready to the start of its batch
    step_ms: float  # model step of the batch
    handover_ms: float  # from the model's thread to the event loop's
    decode_ms: float  # search and text conversion of the batch
    write_ms: float  # from the text to the socket
    batch: int  # rows of the model call: this step and those of other streams


class StepReport(msgspec.Struct):
    """Opt-in extension of `Results`: the number of stable words and, with `step_results`, the times of the step.

    `endpoint_delay_ms` is the audio from the end of the last word to the end of the segment.
    """

    stable_words: int
    audio_processed_s: float | UnsetType = UNSET
    queue_wait_ms: float | UnsetType = UNSET
    step_ms: float | UnsetType = UNSET
    decode_ms: float | UnsetType = UNSET
    endpoint_delay_ms: float | UnsetType = UNSET
    latency: Latency | UnsetType = UNSET


class Results(msgspec.Struct, tag_field="type", tag="Results"):
    """The transcript of a part of one channel."""

    channel_index: tuple[int, int]
    start: float
    duration: float
    is_final: bool
    speech_final: bool
    from_finalize: bool
    channel: msgspec.Raw  # `Alternatives`
    metadata: msgspec.Raw
    tutti: StepReport | UnsetType = UNSET
    overlap: bool | UnsetType = UNSET  # ours, of finals with `utterances`
    receipt: str | UnsetType = UNSET  # ours, of finals with `receipt`: a JWS
    correction: bool | UnsetType = UNSET  # ours, of the answer to a `Rewind`: it replaces all words from `start` on
    second_pass: str | UnsetType = UNSET  # ours, of finals that have the text of the first pass instead: the reason


class ResultsMetadata(msgspec.Struct):
    """Metadata repeated in every `Results` of a connection."""

    request_id: str
    model_info: dict[str, str]
    model_uuid: str


class Warned(msgspec.Struct):
    """A warning about audio that was transcribed nevertheless; `type` is its kind, such as `truncated`."""

    parameter: str
    type: str
    message: str


def warned(parameter: str, warnings: Sequence[str]) -> list[Warned] | UnsetType:
    """Convert warnings of the form `kind: sentence`; UNSET if there are none."""
    return [Warned(parameter, text.partition(": ")[0], text) for text in warnings] or UNSET


class Metadata(msgspec.Struct, tag_field="type", tag="Metadata"):
    """Summary of a connection, sent once before the close."""

    transaction_key: str
    request_id: str
    sha256: str
    created: str
    duration: float
    channels: int
    models: list[str] | UnsetType = UNSET
    model_info: dict[str, dict[str, str]] | UnsetType = UNSET
    warnings: list[Warned] | UnsetType = UNSET
    receipt: str | UnsetType = UNSET  # ours
    extra: Mapping[str, str] | UnsetType = UNSET  # as given
    other_voice_words: int | UnsetType = UNSET  # ours: of finals, by other voices than the one that is listened to


class SpeechStartedOut(msgspec.Struct, tag_field="type", tag="SpeechStarted"):
    """Speech began after silence."""

    channel: tuple[int, int]
    timestamp: float


class UtteranceEnd(msgspec.Struct, tag_field="type", tag="UtteranceEnd"):
    """The gap after the last word has reached `utterance_end_ms`."""

    channel: tuple[int, int]
    last_word_end: float


class ErrorVariant(StrEnum):
    """Kinds of `Error`."""

    SCHEMA = "SchemaError"  # an invalid text frame; the stream continues
    DATA = "DATA-0000"  # audio that cannot be decoded; the connection closes
    INTERNAL = "InternalError"  # recognition failed; the connection closes


class ConfigureCode(StrEnum):
    """Reasons of a `ConfigureFailure`."""

    NOT_SUPPORTED = "CONFIGURE_NOT_SUPPORTED"
    KEYTERMS_NOT_SUPPORTED = "CONFIGURE_KEYTERMS_NOT_SUPPORTED"
    ALREADY_PENDING = "CONFIGURE_ALREADY_PENDING"
    KEYTERM_LIMIT_EXCEEDED = "CONFIGURE_KEYTERM_LIMIT_EXCEEDED"


class Error(msgspec.Struct, tag_field="type", tag="Error"):
    """An error during a stream."""

    variant: ErrorVariant
    description: str
    message: str | UnsetType = UNSET


class ConfigureSuccess(msgspec.Struct, tag_field="type", tag="ConfigureSuccess"):
    """The new settings are in force."""

    request_id: str
    keyterms: list[str]


class _Failure(msgspec.Struct):
    request_id: str
    code: ConfigureCode
    description: str


class ConfigureFailure(_Failure, tag_field="type", tag="ConfigureFailure"):
    """The change was refused; the old settings stay in force."""


class ContextFailure(_Failure, tag_field="type", tag="ContextFailure"):
    """Ours: the text has no effect."""


class RewindFailure(_Failure, tag_field="type", tag="RewindFailure"):
    """Ours: nothing was decoded again."""


class ContextSuccess(msgspec.Struct, tag_field="type", tag="ContextSuccess"):
    """Ours: the rare words of what other speakers said, favored for a while."""

    request_id: str
    keyterms: list[str]


class KeepAlive(msgspec.Struct, tag_field="type", tag="KeepAlive", frozen=True):
    """Reset the idle timer. It and `CloseStream` have no fields, and ignore any; other messages refuse unknown ones."""


class Finalize(msgspec.Struct, tag_field="type", tag="Finalize", frozen=True, forbid_unknown_fields=True):
    """Flush one channel, or all, and keep the stream open."""

    channel: int | None = None


class CloseStream(msgspec.Struct, tag_field="type", tag="CloseStream", frozen=True):
    """Flush and close."""


class Configure(msgspec.Struct, tag_field="type", tag="Configure", frozen=True, forbid_unknown_fields=True):
    """Change settings during a stream; only `keyterms` can change.

    Fields of `/v2/listen`, and `features` that differ from those in force, are parsed in order to be refused.
    """

    keyterms: list[str] | None = None
    features: dict[str, object] | None = None
    thresholds: object = None
    language_hints: object = None
    numerals: object = None
    profanity_filter: object = None

    def unsupported(self, in_force: Mapping[str, bool]) -> tuple[str, ...]:
        """Return the requested changes that are not possible during a stream; `in_force` has its present switches."""
        switches = [
            *(self.features or {}).items(),
            ("numerals", self.numerals),
            ("profanity_filter", self.profanity_filter),
        ]
        wanted = {name: value not in NOTHING for name, value in switches if value is not None}
        changed = {name for name, on in wanted.items() if on is not in_force.get(name, False)}
        others = {name for name in ("thresholds", "language_hints") if getattr(self, name) not in NOTHING}
        return tuple(sorted(changed | others))


class Context(msgspec.Struct, tag_field="type", tag="Context", frozen=True, forbid_unknown_fields=True):
    """Ours: what another speaker of the conversation said, whose rare words are favored for a while."""

    text: str


class Rewind(msgspec.Struct, tag_field="type", tag="Rewind", frozen=True, forbid_unknown_fields=True):
    """Ours: look for further key terms in the finals of the last seconds."""

    seconds: float
    keyterms: list[str] = []
    channel: int | None = None


FAILURES: dict[type, type[_Failure]] = {Configure: ConfigureFailure, Context: ContextFailure, Rewind: RewindFailure}
MAX_CHARACTERS = 32_768  # of a text frame: twice the largest set of key terms, escaped

Action = KeepAlive | Finalize | CloseStream | Configure | Context | Rewind
KINDS = {kind.__struct_config__.tag: kind for kind in get_args(Action)}
TYPES = ", ".join(KINDS)
NOT_JSON = "the message is not JSON"
_decode = msgspec.json.Decoder(Action).decode


class BadConfigure(BadFrame):
    """A `Configure` that is JSON, but not in form: it gets a `ConfigureFailure`, for which its client waits."""


class _Typed(msgspec.Struct):
    type: str


_typed = msgspec.json.Decoder(_Typed)


def parse_frame(text: str, channels: int) -> Action:
    """Parse a text frame of a connection with this number of recognized channels. Raises: BadFrame."""
    if len(text) > MAX_CHARACTERS:
        raise _kind_of(text)(f"the message has {len(text)} characters; at most {MAX_CHARACTERS}")
    try:
        action: Action = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _kind_of(text)(_problem(error, text)) from error
    if isinstance(action, Finalize | Rewind) and action.channel is not None and not 0 <= action.channel < channels:
        raise BadFrame(f"channel: {action.channel} is not valid; must be from 0 to {channels - 1}")
    return action


def _kind_of(text: str) -> type[BadFrame]:
    try:
        return BadConfigure if _typed.decode(text).type == Configure.__struct_config__.tag else BadFrame
    except (msgspec.DecodeError, RecursionError):
        return BadFrame


def _problem(error: msgspec.DecodeError | RecursionError, text: str) -> str:
    """Return what is wrong with a message; a type that is not valid is found before what follows it is read."""
    try:
        name = _typed.decode(text).type
    except msgspec.ValidationError:
        return f"the message must be a JSON object whose type is one of {TYPES}"
    except (msgspec.DecodeError, RecursionError):
        return NOT_JSON
    if name == "Resume":
        return "Resume: this stream cannot be resumed; set resumable=true in the query"
    kind = KINDS.get(name)
    if kind is None:
        return f"unknown message type; valid types: {TYPES}"
    return f"{name}: {problem_of(error, kind)}" if isinstance(error, msgspec.ValidationError) else NOT_JSON
