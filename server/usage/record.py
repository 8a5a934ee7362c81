"""Usage record: what one stream or upload has used, as a line of JSON. No text of a transcript, no key. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

OPEN = "open"
"""Reason of a record that was written while its stream continues."""
MAX_S = 1e8  # three years of one stream


class UsageRecord(msgspec.Struct, frozen=True):
    """Usage of one connection or upload, up to the time `end`.

    A stream that is resumed on another connection has records of each, with the same `stream`.
    """

    stream: str  # request id of the stream's first connection
    request_id: str
    key: str  # the key's name, "" if it has none
    key_id: str  # the same on every server, and for the key's tokens; "" without a key
    kind: str  # live or upload
    protocol: str
    model: str
    language: str  # languages of the model, with commas
    features: tuple[str, ...]
    from_s: float  # stream time at which the audio of this connection begins
    to_s: tuple[float, ...]  # stream time that was received, by channel
    start: datetime  # UTC
    end: datetime  # UTC
    reason: str  # why it ended, or `OPEN`


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageRecord).decode


def line_of(record: UsageRecord) -> bytes:
    """Return a record as a line, with its end."""
    return _encode(record) + b"\n"


def record_of(line: bytes) -> UsageRecord:
    """Read a line. Raises: ValueError."""
    try:
        record = _decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError("not a usage record") from error
    if not record.to_s or record.start.tzinfo is None or record.end.tzinfo is None:
        raise ValueError("not a usage record")
    if not all(0 <= record.from_s <= reached_s < MAX_S for reached_s in record.to_s):
        raise ValueError(
            f"not a usage record: from_s {record.from_s:g} to {max(record.to_s):g} s is no time of a stream"
        )
    return record
