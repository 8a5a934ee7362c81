"""OpenAI Realtime's events in both directions, as shapes. Pure.

Source: protocols.md 5.1; the types of the `openai` package 3.51.0.
"""

from __future__ import annotations

import binascii

import msgspec
from msgspec import UNSET, UnsetType

from server.errors import BadFrame
from server.protocols.openai.errors import MESSAGE

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
    """What went wrong; `event_id` is that of the client's event."""

    message: str
    type: str = MESSAGE
    code: str | None = None
    param: str | None = None
    event_id: str | None = None


class Spoken(msgspec.Struct, omit_defaults=True):
    """Any event of the server; a field that is not its own is left out."""

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
