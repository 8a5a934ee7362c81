"""Messages of OpenAI's protocols: Realtime events in both directions, and errors. Pure."""

from __future__ import annotations

import binascii
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame
from server.protocols.features import SHOWN, problem_of
from server.protocols.openai.settings import ErrorCode, unknown_parameter


class ErrorType(StrEnum):
    """Values of an error's `type`."""

    INVALID_REQUEST = "invalid_request_error"
    AUTHENTICATION = "authentication_error"
    SERVER = "server_error"


STATUS_CODES = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    404: "unknown_url",
    405: "method_not_supported",
    429: "rate_limit_exceeded",
    503: "server_overloaded",
}
"""The `code` of a refusal by its HTTP status; null for others."""


class ErrorDetail(msgspec.Struct):
    """An error; `param` is the name of the field concerned."""

    message: str
    type: str  # an `ErrorType`
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """Body of a refusal."""

    error: ErrorDetail


def error_body(status: int, message: str) -> bytes:
    """Build the body of a refusal with this HTTP status; a message `field: ...` sets `param`."""
    field, colon, _ = message.partition(": ")
    param = field if colon and field.replace("-", "_").isidentifier() else None
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, _type_of(status), param, STATUS_CODES.get(status))))


def _type_of(status: int) -> ErrorType:
    if status in (401, 403):
        return ErrorType.AUTHENTICATION
    return ErrorType.SERVER if status >= 500 else ErrorType.INVALID_REQUEST


DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"


class ClientEvent(msgspec.Struct, frozen=True):
    """Any client event; the fields that count depend on `type`."""

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
"""Client events and their fields."""

MAX_AUDIO_BYTES = 15 * 2**20  # of an append. Source: the type of the event in the `openai` package 3.51.0
MAX_EVENT_BYTES = 2 * MAX_AUDIO_BYTES + 2 * 2**20  # of a message: room to answer an append over the audio limit


class _Append(ClientEvent, frozen=True, forbid_unknown_fields=True):
    """An event without unknown fields, checked during decoding because most events carry audio."""


_decode = msgspec.json.Decoder(ClientEvent).decode
_decode_known = msgspec.json.Decoder(_Append).decode


def parse_event(text: str) -> ClientEvent:
    """Parse an event. Raises: BadFrame."""
    try:
        return _decode_known(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass  # it may have an unknown field
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise BadFrame(problem_of(error, ClientEvent)) from error
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("the event is not JSON") from error


def check_fields(event: ClientEvent, text: str) -> None:
    """Refuse an event of unknown type or with unknown fields. Raises: BadFrame."""
    if event.type not in FIELDS:
        raise BadFrame(f"type: {event.type[:SHOWN]!r} is not valid; must be one of {', '.join(FIELDS)}")
    if type(event) is _Append and event.type == APPEND and event.session is UNSET:
        return
    known = FIELDS[event.type]
    unknown = [name for name in msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if name not in known]
    if unknown:
        raise unknown_parameter(*unknown)


def decode_audio(audio: str | None) -> bytes:
    """Decode the audio of an append. Raises: BadFrame."""
    if audio is None:
        raise BadFrame("audio: missing; send base64")
    try:
        data = binascii.a2b_base64(audio, strict_mode=True)
    except ValueError as error:  # binascii.Error, and text that is not ASCII
        raise BadFrame("audio: not valid base64") from error
    if len(data) > MAX_AUDIO_BYTES:
        raise BadFrame(f"audio: {len(data)} bytes; at most {MAX_AUDIO_BYTES} (15 MiB) per append: send several")
    return data


class Usage(msgspec.Struct, tag_field="type", tag="duration"):
    """Duration of the transcribed audio."""

    seconds: float


class RealtimeError(msgspec.Struct):
    """Error in a session; `event_id` is that of the client event that caused it."""

    message: str
    type: ErrorType = ErrorType.INVALID_REQUEST
    code: ErrorCode | None = None
    param: str | None = None
    event_id: str | None = None


class ServerEvent(msgspec.Struct, omit_defaults=True):
    """Any server event; fields that its type does not have are omitted."""

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
