"""Frames of AudioSocket, and the adapter of one call: its audio in, results in Deepgram's protocol out. Pure.

A frame is a byte with its kind, the length of its payload in two bytes, the high one first, and the payload. The first
frame of a connection is the UUID that the dialplan gave. Asterisk is sent silence, and the frame that ends the call's
connection.

Source: docs.asterisk.org, AudioSocket; Asterisk's include/asterisk/res_audiosocket.h.
"""

from __future__ import annotations

from typing import Any

import msgspec

from server.audio.raw import PlainCodec
from server.protocols.call_adapter import CallAdapter, encode
from server.protocols.deepgram.projector import Projector
from server.streaming.adapter import Actions, Finish, PlainInput, SendFrame, Skip

HEAD_BYTES, UUID_BYTES = 3, 16
END, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF
RATES = {0x10: 8_000, 0x11: 12_000, 0x12: 16_000, 0x13: 24_000, 0x14: 32_000, 0x15: 44_100, 0x16: 48_000}
"""Sample rates by kinds of audio frames, 16-bit little-endian mono. 0x17 and 0x18, of 96 and 192 kHz, are not taken."""
TOO_HIGH = (0x17, 0x18)
SILENCE = bytes([0x10, 0x01, 0x40]) + bytes(320)
"""A frame of 20 ms."""
END_FRAME = bytes([END, 0, 0])
"""It ends the connection."""
STOP = "stop"
"""Text message that ends the audio; others are a number, the rate of the audio that follows, and `dtmf` with a key."""


class AudioSocketFrame(msgspec.Struct, frozen=True):
    """One frame."""

    kind: int
    payload: bytes


def parse_frame(received: bytearray) -> tuple[AudioSocketFrame, int] | int:
    """Return the next frame and its size, or the size without which it is incomplete."""
    if len(received) < HEAD_BYTES:
        return HEAD_BYTES
    size = HEAD_BYTES + int.from_bytes(received[1:HEAD_BYTES], "big")
    if len(received) < size:
        return size
    return AudioSocketFrame(received[0], bytes(received[HEAD_BYTES:size])), size


class CallText(msgspec.Struct, omit_defaults=True):
    """Outgoing frame of a call; `result` is a message of Deepgram's protocol."""

    event: str
    uuid: str
    result: msgspec.Raw | None = None
    digit: str | None = None


class AudioSocketAdapter(CallAdapter):
    """Adapter of one call."""

    def __init__(self, projector: Projector, model_rate: int, uuid: str) -> None:
        super().__init__(projector)
        self._model_rate = model_rate
        self._uuid = uuid
        self._input: PlainInput | None = None

    def opened(self) -> Actions:
        """Announce the call."""
        return (SendFrame(self._frame("start")),)

    def binary(self, chunk: bytes) -> Actions:
        """Recognize audio, split anywhere."""
        assert self._input is not None, "its rate comes first"
        return (self._input.read(chunk),)

    def text(self, text: str) -> Actions:
        """Handle a key, the rate of the audio that follows, or the end."""
        name, _, digit = text.partition(" ")
        if name == "dtmf":
            if self._projector.request.options.redact:
                return (Skip("dtmf withheld: redact is set"),)
            return (SendFrame(self._frame("dtmf", digit=digit)),)
        tail = () if self._input is None else self._input.tail()
        if text == STOP:
            return (*tail, Finish())
        self._input = PlainInput(PlainCodec.S16, int(text), self._model_rate)
        return tail

    def _frame(self, event: str, *, channel: int | None = None, **fields: Any) -> bytes:  # noqa: ARG002 - there is one
        return encode(CallText(event, self._uuid, **fields))
