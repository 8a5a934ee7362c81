"""OpenAI's messages as wire structs: Realtime events in both directions, and errors. Pure."""

from __future__ import annotations

import binascii

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame
from server.protocols.openai.session_fields import unknown_parameter

MESSAGE, SERVER, KEY = "invalid_request_error", "server_error", "authentication_error"
_CODES = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    404: "unknown_url",
    405: "method_not_supported",
    429: "rate_limit_exceeded",
    503: "server_overloaded",
}


class ErrorDetail(msgspec.Struct):
    """What went wrong; `param` names the field that it is about."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of an answer that is a refusal."""

    error: ErrorDetail


def error_body(status: int, message: str) -> bytes:
    """Build the body of a refusal with this HTTP status."""
    field, colon, _ = message.partition(": ")
    param = field if colon and field.replace("-", "_").isidentifier() else None
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, _kind(status), param, _CODES.get(status))))


def _kind(status: int) -> str:
    if status in (401, 403):
        return KEY
    return SERVER if status >= 500 else MESSAGE


MAX_ECHO = 64  # characters of a client's own text that an error repeats
DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"


class ClientEvent(msgspec.Struct, frozen=True):
    """Any event of a client; which fields matter depends on `type`."""

    type: str
    event_id: str | None = None
    audio: str | None = None
    session: msgspec.Raw | UnsetType = UNSET


APPEND, UPDATE = "input_audio_buffer.append", "session.update"
FIELDS = {
    APPEND: frozenset({"type", "event_id", "audio"}),
    UPDATE: frozenset({"type", "event_id", "session"}),
    "input_audio_buffer.commit": frozenset({"type", "event_id"}),
    "input_audio_buffer.clear": frozenset({"type", "event_id"}),
}
"""Fields of the events of a client that this server knows."""

MAX_AUDIO_BYTES = 15 * 2**20  # of an append. Source: the type of the event in the `openai` package 3.51.0
MAX_EVENT_BYTES = 2 * MAX_AUDIO_BYTES + 2 * 2**20  # of a message that is read: a larger append gets an error event


class _Append(ClientEvent, frozen=True, forbid_unknown_fields=True):
    """An event without unknown fields: checked while it is decoded, for most events are of audio."""


_decode = msgspec.json.Decoder(ClientEvent).decode
_decode_known = msgspec.json.Decoder(_Append).decode


def parse_event(text: str) -> ClientEvent:
    """Read an event. Raises: BadFrame."""
    try:
        return _decode_known(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass  # it may have an unknown field
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("the event is not a JSON object with a type, or a field has the wrong type") from error


def check_fields(event: ClientEvent, text: str) -> None:
    """Refuse an event of an unknown type, and fields that those of its type do not have. Raises: BadFrame."""
    if event.type not in FIELDS:
        raise BadFrame(f"type: {event.type[:MAX_ECHO]!r} is not an event of a transcription session")
    if type(event) is _Append and event.type == APPEND and event.session is UNSET:
        return
    known = FIELDS[event.type]
    unknown = [name for name in msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if name not in known]
    if unknown:
        raise unknown_parameter(*unknown)


def decode_audio(audio: str | None) -> bytes:
    """Return the bytes of an append. Raises: BadFrame."""
    if audio is None:
        raise BadFrame("audio: missing")
    try:
        data = binascii.a2b_base64(audio, strict_mode=True)
    except ValueError as error:  # binascii.Error, and text that is not ASCII
        raise BadFrame("audio: not base64") from error
    if len(data) > MAX_AUDIO_BYTES:
        raise BadFrame(f"audio: {len(data)} bytes; an append takes at most {MAX_AUDIO_BYTES} (15 MiB): send several")
    return data


class Usage(msgspec.Struct, tag_field="type", tag="duration"):
    """How much audio a transcript is of."""

    seconds: float


class RealtimeError(msgspec.Struct):
    """Error of a session; `event_id` is that of the client's event."""

    message: str
    type: str = MESSAGE
    code: str | None = None
    param: str | None = None
    event_id: str | None = None


class ServerEvent(msgspec.Struct, omit_defaults=True):
    """Any event of the server; fields that are not of its type are left out."""

    event_id: str
    type: str
    session: dict[str, object] | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    previous_item_id: str | UnsetType | None = UNSET
    audio_start_ms: int | UnsetType = UNSET
    audio_end_ms: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    error: RealtimeError | UnsetType = UNSET
