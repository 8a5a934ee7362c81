"""Messages for resuming a stream: the client's first message on a new connection, and the answers. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.errors import BadFrame
from server.protocols.json_errors import problem_of

Seconds = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]


class Resume(msgspec.Struct, tag_field="type", tag="Resume", frozen=True, forbid_unknown_fields=True):
    """Resume from a ticket, or start the stream time at `from_s`.

    `finals` is the number received since the first connection; `cursor_s` the largest start + duration of any result.
    """

    ticket: str | None = None
    from_s: Seconds | None = None
    finals: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cursor_s: Seconds = 0.0


class TicketOut(msgspec.Struct, tag_field="type", tag="Ticket", frozen=True):
    """A stream's state as encrypted text: a later connection resumes from it with the audio from `audio_s` on.

    `finals` is the number before the state: fewer than the client has received while a replay catches up.
    """

    ticket: str
    audio_s: float
    finals: int
    stream_id: str


class Resumed(msgspec.Struct, tag_field="type", tag="Resumed", frozen=True):
    """The stream is resumed; the client sends audio from `audio_s` on."""

    audio_s: float
    stream_id: str


class ResumeRefused(msgspec.Struct, tag_field="type", tag="ResumeRefused", frozen=True):
    """The ticket was refused; the stream starts anew."""

    code: str
    description: str


class _Tagged(msgspec.Struct, frozen=True):
    """The type of any message."""

    type: str = ""


_tagged = msgspec.json.Decoder(_Tagged).decode
_decode = msgspec.json.Decoder(Resume).decode


def parse_resume(text: str) -> Resume | None:
    """Parse a text frame; return None if it is not a `Resume`. Raises: BadFrame."""
    try:
        if _tagged(text).type != Resume.__struct_config__.tag:
            return None
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        resume = _decode(text)
    except msgspec.ValidationError as error:
        raise BadFrame(f"Resume: {problem_of(error, Resume)}") from error
    if (resume.ticket is None) == (resume.from_s is None):
        raise BadFrame("Resume: send either ticket or from_s")
    return resume
