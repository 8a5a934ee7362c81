"""Adapter of FreeSWITCH's mod_audio_stream: raw 16-bit audio of a call in, results in Deepgram's protocol back.

The module sends what `uuid_audio_stream … start` was given as metadata in a text frame before the audio, and further
text frames on `send_text`. What comes back is an event of the channel. Pure.

Source: the README of amigniter/mod_audio_stream. Its thread of audio may be faster than the metadata (issue 121 there).
"""

from __future__ import annotations

from typing import Any

import msgspec

from server.protocols.call_adapter import CallAdapter, encode
from server.protocols.deepgram.projector import Projector
from server.protocols.features import control_text
from server.streaming.adapter import Actions, Encoded, Finish, Flush, SendFrame, Skip

MAX_METADATA_CHARACTERS = 16_384
_decode = msgspec.json.Decoder().decode


class CallFrame(msgspec.Struct, omit_defaults=True):
    """Outgoing frame; `result` is a message of Deepgram's protocol, `metadata` the channel's: JSON, or a text."""

    event: str
    result: msgspec.Raw | None = None
    metadata: object = None


class FreeSwitchAdapter(CallAdapter):
    """Adapter of one call."""

    def __init__(self, projector: Projector) -> None:
        super().__init__(projector)
        self._started = False  # with metadata or audio
        self._late = False  # whether metadata may still follow audio

    def text(self, text: str) -> Actions:
        """Take metadata, before the audio or late; after that `Finalize`, `CloseStream` and `KeepAlive`."""
        if not self._started:
            self._started = True
            return self._told("start", text)
        message = _json(text)
        match message.get("type") if isinstance(message, dict) else None:
            case "Finalize":
                return (Flush(),)
            case "CloseStream":
                return (Finish(),)
            case "KeepAlive":
                return ()
            case _ if self._late:
                return self._told("metadata", text)
            case _:
                return (Skip("a text after the first one that is not Finalize, CloseStream or KeepAlive"),)

    def binary(self, chunk: bytes) -> Actions:
        """Recognize audio, split anywhere, or handle a message that came in a binary frame."""
        if (text := control_text(chunk)) is not None:
            return self.text(text)
        if self._started:
            return (Encoded(chunk, _nothing),)
        self._started = self._late = True
        return (SendFrame(self._frame("start")), Encoded(chunk, _nothing))

    def _told(self, event: str, metadata: str) -> Actions:
        self._late = False
        if len(metadata) > MAX_METADATA_CHARACTERS:
            why = f"metadata: not sent back, more than {MAX_METADATA_CHARACTERS} characters"
            return (Skip(why), SendFrame(self._frame(event)))
        value = _json(metadata)
        return (SendFrame(self._frame(event, metadata=(metadata or None) if value is None else value)),)

    def _frame(self, event: str, *, channel: int | None = None, **fields: Any) -> bytes:  # noqa: ARG002 - in the result
        return encode(CallFrame(event, **fields))


def _json(text: str) -> object:
    """Return the value of a JSON text; None for others."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _nothing(why: str) -> Actions:  # noqa: ARG001 - of `Encoded`
    """Send nothing: the close has the reason."""
    return ()
