"""Deepgram's text frames from the client, as actions. Pure; binary frames are audio and never come here."""

from __future__ import annotations

import msgspec

from server.errors import BadFrame


class KeepAlive(msgspec.Struct, tag_field="type", tag="KeepAlive", frozen=True):
    """The client is still there; nothing to do but to reset the idle timer."""


class Finalize(msgspec.Struct, tag_field="type", tag="Finalize", frozen=True):
    """Flush one channel, or all of them, and stay open."""

    channel: int | None = None


class CloseStream(msgspec.Struct, tag_field="type", tag="CloseStream", frozen=True):
    """Flush and end."""


class Configure(msgspec.Struct, tag_field="type", tag="Configure", frozen=True):
    """Change settings in mid-stream; `keyterms` is the only one that a client sends today."""

    keyterms: list[str] | None = None


MAX_CHARACTERS = 32_768  # of a frame: the largest set of key terms, escaped, is half of that
Action = KeepAlive | Finalize | CloseStream | Configure

_decode = msgspec.json.Decoder(Action).decode


def parse_frame(text: str, channels: int) -> Action:
    """Read a text frame on a connection with this many recognised channels. Raises: BadFrame saying what is wrong."""
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
