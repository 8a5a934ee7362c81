"""OpenAI's messages as wire structs: Realtime events in both directions, and errors. Pure."""

from __future__ import annotations

import binascii

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame

MESSAGE, SERVER, KEY = "invalid_request_error", "server_error", "authentication_error"
_CODES = {401: "invalid_api_key", 403: "insufficient_permissions", 429: "rate_limit_exceeded", 503: "server_overloaded"}


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


_decode = msgspec.json.Decoder(ClientEvent).decode


def parse_event(text: str) -> ClientEvent:
    """Read an event. Raises: BadFrame."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("the event is not a JSON object with a type, or a field has the wrong type") from error


def decode_audio(audio: str | None) -> bytes:
    """Return the bytes of an append. Raises: BadFrame."""
    if audio is None:
        raise BadFrame("audio: missing")
    try:
        return binascii.a2b_base64(audio, strict_mode=True)
    except ValueError as error:  # binascii.Error, and text that is not ASCII
        raise BadFrame("audio: not base64") from error


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
