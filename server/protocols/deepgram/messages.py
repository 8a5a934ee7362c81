"""Deepgram's messages in both directions as structs, and the parser of client frames. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame


class WordOut(msgspec.Struct):
    """One word with absolute stream times in seconds."""

    word: str
    start: float
    end: float
    confidence: float
    punctuated_word: str | UnsetType = UNSET


class Alternative(msgspec.Struct):
    """A transcript; ours is the only one."""

    transcript: str
    confidence: float
    words: list[WordOut]


class Alternatives(msgspec.Struct):
    """What was said on one channel."""

    alternatives: tuple[Alternative]


class Latency(msgspec.Struct):
    """Latency of a result, opt-in by `latency=true`, as consecutive parts in milliseconds.

    They cover the time from the arrival of the last sample that the result needs to its frame written, but for cutting
    audio into steps (microseconds). A frame cannot tell its own writing: `write_ms` is that of the connection's result
    before it, 0 in the first.
    """

    queue_ms: float  # step ready to its batch starting
    step_ms: float  # the model's step for the batch
    handover_ms: float  # from the model's thread to the event loop's
    decode_ms: float  # search and text of the batch
    write_ms: float  # from its text to the socket
    batch: int  # rows: steps of other streams that shared the model call, and this one


class StepReport(msgspec.Struct):
    """Ours, and opt-in: the number of words that can no longer change and, with `step_results`, the times of the step.

    `endpoint_delay_ms` is what an endpoint cost: audio from the end of the last word to the end of the segment.
    """

    stable_words: int
    audio_processed_s: float | UnsetType = UNSET
    queue_wait_ms: float | UnsetType = UNSET
    step_ms: float | UnsetType = UNSET
    decode_ms: float | UnsetType = UNSET
    endpoint_delay_ms: float | UnsetType = UNSET
    latency: Latency | UnsetType = UNSET


class Results(msgspec.Struct, tag_field="type", tag="Results"):
    """A transcript of a stretch of one channel."""

    channel_index: tuple[int, int]
    start: float
    duration: float
    is_final: bool
    speech_final: bool
    from_finalize: bool
    channel: msgspec.Raw  # `Alternatives`
    metadata: msgspec.Raw
    tutti: StepReport | UnsetType = UNSET


class ResultsMetadata(msgspec.Struct):
    """Metadata that every `Results` of a connection repeats."""

    request_id: str
    model_info: dict[str, str]
    model_uuid: str


class Warned(msgspec.Struct):
    """A warning about the audio, which was transcribed nevertheless; `type` is its kind, such as `truncated`."""

    parameter: str
    type: str
    message: str


def warned(parameter: str, warnings: Sequence[str]) -> list[Warned] | UnsetType:
    """Return warnings that are `kind: sentence`, UNSET where there are none."""
    return [Warned(parameter, text.partition(": ")[0], text) for text in warnings] or UNSET


class Metadata(msgspec.Struct, tag_field="type", tag="Metadata"):
    """The summary of a connection, once, just before its end."""

    transaction_key: str
    request_id: str
    sha256: str
    created: str
    duration: float
    channels: int
    models: list[str] | UnsetType = UNSET
    model_info: dict[str, dict[str, str]] | UnsetType = UNSET
    warnings: list[Warned] | UnsetType = UNSET


class SpeechStartedOut(msgspec.Struct, tag_field="type", tag="SpeechStarted"):
    """Speech began after silence."""

    channel: tuple[int, int]
    timestamp: float


class UtteranceEnd(msgspec.Struct, tag_field="type", tag="UtteranceEnd"):
    """The gap after the last word has lasted for `utterance_end_ms`."""

    channel: tuple[int, int]
    last_word_end: float


class Error(msgspec.Struct, tag_field="type", tag="Error"):
    """A complaint inside a stream."""

    variant: str
    description: str
    message: str | UnsetType = UNSET


class ConfigureSuccess(msgspec.Struct, tag_field="type", tag="ConfigureSuccess"):
    """The new settings are in force."""

    request_id: str
    keyterms: list[str]


class ConfigureFailure(msgspec.Struct, tag_field="type", tag="ConfigureFailure"):
    """The old settings stay."""

    request_id: str
    code: str
    description: str


class KeepAlive(msgspec.Struct, tag_field="type", tag="KeepAlive", frozen=True):
    """Reset the idle timer."""


class Finalize(msgspec.Struct, tag_field="type", tag="Finalize", frozen=True):
    """Flush one channel, or all of them, and stay open."""

    channel: int | None = None


class CloseStream(msgspec.Struct, tag_field="type", tag="CloseStream", frozen=True):
    """Flush and end."""


_OFF: tuple[object, ...] = (None, False, 0, "", "false", "0", [], {})  # values that ask for nothing


class Configure(msgspec.Struct, tag_field="type", tag="Configure", frozen=True):
    """Change settings in mid-stream; `keyterms` is the only one.

    Fields of `/v2/listen` are read to be refused, as are `features` that would change.
    """

    keyterms: list[str] | None = None
    features: dict[str, object] | None = None
    thresholds: object = None
    language_hints: object = None
    numerals: object = None
    profanity_filter: object = None

    def unmet(self, in_force: Mapping[str, bool]) -> tuple[str, ...]:
        """Return the names of what this would change and no stream can; `in_force` has the switches of this one."""
        switches = [
            *(self.features or {}).items(),
            ("numerals", self.numerals),
            ("profanity_filter", self.profanity_filter),
        ]
        asked = {name: value not in _OFF for name, value in switches if value is not None}
        changed = {name for name, on in asked.items() if on is not in_force.get(name, False)}
        given = {name for name in ("thresholds", "language_hints") if getattr(self, name) not in _OFF}
        return tuple(sorted(changed | given))


MAX_CHARACTERS = 32_768  # of a frame: the largest set of key terms, escaped, is half of that
Action = KeepAlive | Finalize | CloseStream | Configure

_decode = msgspec.json.Decoder(Action).decode


class _Typed(msgspec.Struct):
    type: str


_typed = msgspec.json.Decoder(_Typed)


def control_text(chunk: bytes) -> str | None:
    """Return the control message that was sent as a binary frame, None if the frame is audio.

    No audio is a JSON object with a `type`; within a container it would be read as damage.
    """
    if chunk[:1] != b"{" or len(chunk) > MAX_CHARACTERS:
        return None
    try:
        _typed.decode(chunk)
    except (msgspec.DecodeError, RecursionError):
        return None
    return chunk.decode()


def parse_frame(text: str, channels: int) -> Action:
    """Read a text frame on a connection of `channels` recognised channels. Raises: BadFrame naming what is wrong."""
    if len(text) > MAX_CHARACTERS:
        raise BadFrame(f"the text has more than {MAX_CHARACTERS} characters")
    try:
        action: Action = _decode(text)
    except msgspec.ValidationError as error:
        raise BadFrame("unknown message type, or a field of the wrong type") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame("the text is not a JSON object") from error
    if isinstance(action, Finalize) and action.channel is not None and not 0 <= action.channel < channels:
        raise BadFrame(f"channel must be from 0 to {channels - 1}")
    return action
