"""The frames of resuming: what a client asks first on a new connection, and what it is told."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.errors import BadFrame

MAX_CHARACTERS = 2**20  # of a frame: what a message may have at all
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]


class Resume(msgspec.Struct, tag_field="type", tag="Resume", frozen=True):
    """Go on from a ticket, or begin the stream time at `from_s`.

    `finals` have come since the first connection, and `cursor_s` is the largest start + duration of any result.
    """

    ticket: str | None = None
    from_s: Seconds | None = None
    finals: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cursor_s: Seconds = 0.0


class TicketOut(msgspec.Struct, tag_field="type", tag="Ticket", frozen=True):
    """Whoever has this can go on with the stream, given its audio from `audio_s` on.

    `finals` are those that the state has given: fewer than the client has while a replay catches up.
    """

    ticket: str
    audio_s: float
    finals: int
    stream_id: str


class Resumed(msgspec.Struct, tag_field="type", tag="Resumed", frozen=True):
    """The audio is wanted from here on."""

    audio_s: float
    stream_id: str


class ResumeRefused(msgspec.Struct, tag_field="type", tag="ResumeRefused", frozen=True):
    """The stream begins afresh."""

    code: str
    description: str


class _Tagged(msgspec.Struct, frozen=True):
    """Any frame."""

    type: str = ""


_tagged = msgspec.json.Decoder(_Tagged).decode
_decode = msgspec.json.Decoder(Resume).decode


def parse_resume(text: str) -> Resume | None:
    """Read a text frame; None if it is another one, or none. Raises: BadFrame saying what is wrong."""
    try:
        if _tagged(text).type != Resume.__struct_config__.tag:
            return None
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        asked = _decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame("a field of Resume has the wrong type") from error
    if (asked.ticket is None) == (asked.from_s is None):
        raise BadFrame("Resume has either a ticket or from_s")
    return asked
