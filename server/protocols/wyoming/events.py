"""Events of the Wyoming protocol as bytes, and what is read of them. Pure.

An event is a line of JSON with its type, then, as long as the line says, JSON data and a binary payload. Data may be in
the line, too; what follows it counts.

Source: `wyoming` 1.10.2 (event.py, asr.py, audio.py, info.py).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from server.audio.raw import PlainCodec
from server.errors import BadFrame
from server.protocols.features import problem_of

MAX_LINE_BYTES = 64 * 1024
MAX_DATA_BYTES = 256 * 1024  # names of entities
MAX_PAYLOAD_BYTES = 2**20
CODECS = {1: PlainCodec.U8, 2: PlainCodec.S16, 3: PlainCodec.S24, 4: PlainCodec.S32}  # by bytes a sample
VERSION = "1.10.2"  # of the package whose events these are
T = TypeVar("T")


class Event(msgspec.Struct, frozen=True):
    """One event."""

    type: str
    data: dict[str, Any]
    payload: bytes = b""


class _Line(msgspec.Struct):
    type: str
    data: dict[str, Any] | None = None
    data_length: int | None = None
    payload_length: int | None = None


class AudioFormat(msgspec.Struct, frozen=True):
    """Form of raw audio: samples a second, bytes a sample, interleaved channels."""

    rate: int
    width: int
    channels: int


class TranscribeRequest(msgspec.Struct, frozen=True):
    """What a client asks for: a model, a language, and hints, of which names come before terms."""

    name: str | None = None
    language: str | None = None
    transcript_names: list[str] | None = None
    transcript_terms: list[str] | None = None


_line = msgspec.json.Decoder(_Line).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def parse_event(received: bytearray) -> tuple[Event, int] | int:
    """Return the next event and its size, or the size without which it is incomplete. Raises: BadFrame."""
    end = received.find(b"\n", 0, MAX_LINE_BYTES)
    if end < 0:
        if len(received) >= MAX_LINE_BYTES:
            raise BadFrame(f"an event begins with a line of JSON of at most {MAX_LINE_BYTES} bytes")
        return len(received) + 1
    try:
        line = _line(received[:end])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("an event begins with a line of JSON that has its type") from error
    data_end = end + 1 + _length("data_length", line.data_length, MAX_DATA_BYTES)
    size = data_end + _length("payload_length", line.payload_length, MAX_PAYLOAD_BYTES)
    if len(received) < size:
        return size
    data = line.data or {}
    if data_end > end + 1:
        try:
            data |= _object(received[end + 1 : data_end])
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadFrame("the data of an event must be a JSON object") from error
    return Event(line.type, data, bytes(received[data_end:size])), size


def _length(name: str, length: int | None, most: int) -> int:
    """Raises: BadFrame."""
    if length is None:
        return 0
    if not 0 <= length <= most:
        raise BadFrame(f"{name}: {length} is not a number of bytes from 0 to {most}")
    return length


def encode_event(name: str, data: dict[str, Any] | None = None) -> bytes:
    """Return an event without a payload."""
    if not data:
        return _encode({"type": name, "version": VERSION}) + b"\n"
    body = _encode(data)
    return b"\n".join((_encode({"type": name, "version": VERSION, "data_length": len(body)}), body))


def data_of(event: Event, kind: type[T]) -> T:
    """Return the data of an `audio-start`, an `audio-chunk` or a `transcribe`. Raises: BadFrame."""
    try:
        return msgspec.convert(event.data, kind)
    except msgspec.ValidationError as error:
        raise BadFrame(f"{event.type}: {problem_of(error, kind)}") from error
