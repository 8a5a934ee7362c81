"""Frames of resuming: a client's first request on a new connection, and the answers. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.errors import BadFrame

MAX_CHARACTERS = 2**20  # of a frame: the limit of any message
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]


class Resume(msgspec.Struct, tag_field="type", tag="Resume", frozen=True):
    """Go on from a ticket, or begin the stream time at `from_s`.

    `finals` counts those received since the first connection; `cursor_s` is the largest start + duration of any result.
    """

    ticket: str | None = None
    from_s: Seconds | None = None
    finals: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cursor_s: Seconds = 0.0


class TicketOut(msgspec.Struct, tag_field="type", tag="Ticket", frozen=True):
    """A stream's state as sealed text: another connection resumes from it with the audio from `audio_s` on.

    `finals` counts those before the state: fewer than the client has while a replay catches up.
    """

    ticket: str
    audio_s: float
    finals: int
    stream_id: str


class Resumed(msgspec.Struct, tag_field="type", tag="Resumed", frozen=True):
    """The stream resumes; audio is wanted from `audio_s` on."""

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
    """Read a text frame; None if it is no `Resume`. Raises: BadFrame naming what is wrong."""
    try:
        if _tagged(text).type != Resume.__struct_config__.tag:
            return None
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        resume = _decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame("a field of Resume has the wrong type") from error
    if (resume.ticket is None) == (resume.from_s is None):
        raise BadFrame("Resume has either a ticket or from_s")
    return resume
