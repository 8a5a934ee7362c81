"""Twilio's messages as wire structs. Pure. Source: twilio.com/docs/voice/media-streams/websocket-messages."""

from __future__ import annotations

import binascii

import msgspec

from server.audio.raw import PlainCodec
from server.errors import BadFrame

CODECS = {"audio/x-mulaw": PlainCodec.MULAW, "audio/x-alaw": PlainCodec.ALAW}  # the second: of its look-alikes
RATES = range(8_000, 48_001)
MAX_ID_CHARACTERS = 128


class MediaFormat(msgspec.Struct, frozen=True, rename="camel"):
    """Audio format."""

    encoding: str = "audio/x-mulaw"
    sample_rate: int = 8_000
    channels: int = 1


class Start(msgspec.Struct, frozen=True, rename="camel"):
    """Call and audio format of a stream."""

    call_sid: str = ""
    tracks: list[str] = []
    media_format: MediaFormat = MediaFormat()


class Media(msgspec.Struct, frozen=True):
    """Audio of one track, in base64."""

    payload: str
    track: str = "inbound"


class Digit(msgspec.Struct, frozen=True):
    """A key pressed on the telephone."""

    digit: str


class Mark(msgspec.Struct, frozen=True):
    """Name of a point in the audio sent to Twilio, which has played up to there."""

    name: str


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """Any message; which fields matter depends on `event`."""

    event: str
    stream_sid: str = ""
    start: Start | None = None
    media: Media | None = None
    dtmf: Digit | None = None
    mark: Mark | None = None


_decode = msgspec.json.Decoder(Message).decode


def parse_message(text: str) -> Message:
    """Read a message. Raises: BadFrame."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadFrame("a message must be JSON with an event") from error


def check_start(message: Message) -> Start:
    """Return the body of `start`. Raises: BadFrame for audio in a format that is not taken."""
    start = message.start
    if start is None:
        raise BadFrame("start: missing")
    form = start.media_format
    if form.encoding not in CODECS or form.sample_rate not in RATES or form.channels != 1:
        raise BadFrame("mediaFormat: one channel of audio/x-mulaw is taken")
    if max(len(message.stream_sid), len(start.call_sid)) > MAX_ID_CHARACTERS:
        raise BadFrame("streamSid: too long")
    return start


def decode_payload(media: Media | None) -> bytes:
    """Return the audio of a message. Raises: BadFrame."""
    if media is None:
        raise BadFrame("media: missing")
    try:
        return binascii.a2b_base64(media.payload, strict_mode=True)
    except ValueError as error:
        raise BadFrame("media: the payload is not base64") from error


class CallEvent(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Frame about a call; `result` is one of Deepgram's protocol."""

    event: str
    stream_sid: str
    call_sid: str
    track: str
    result: msgspec.Raw | None = None
    digit: str | None = None
    name: str | None = None


encode = msgspec.json.Encoder().encode
