"""The server's messages, read for their timing alone.

Owns the few fields that a load test needs: at thousands of messages a second the rest is skipped.
"""

from __future__ import annotations

import msgspec

from tutti_asr_client.errors import BadMessage
from tutti_asr_client.messages import StepTimings, decode


class _Alternative(msgspec.Struct, frozen=True):
    transcript: str


class _Channel(msgspec.Struct, frozen=True):
    alternatives: tuple[_Alternative, ...]


class LatencySplit(msgspec.Struct, frozen=True):
    """What `latency=true` adds: where the time of this result went, part after part."""

    queue_ms: float
    step_ms: float
    handover_ms: float
    decode_ms: float
    write_ms: float  # of the connection's result before it


class Report(StepTimings, frozen=True):
    """What tutti adds to a result."""

    latency: LatencySplit | None = None


class Answer(msgspec.Struct, frozen=True, tag="Results"):
    """A `Results` message."""

    start: float
    duration: float
    is_final: bool
    channel: _Channel
    tutti: Report | None = None

    @property
    def text(self) -> str:
        """The transcript of a final."""
        return self.channel.alternatives[0].transcript if self.channel.alternatives else ""


class Farewell(msgspec.Struct, frozen=True, tag="Metadata"):
    """`Metadata`: nothing follows but the close."""


class Complaint(msgspec.Struct, frozen=True, tag="Error"):
    """`Error`: the server did not understand us."""

    description: str = ""


_decoder: msgspec.json.Decoder[Answer | Farewell | Complaint] = msgspec.json.Decoder(Answer | Farewell | Complaint)


def decode_answer(frame: bytes) -> Answer | Farewell | Complaint | None:
    """The message in one text frame; None for a type that a load test does not use.

    Raises:
        BadMessage: it has not the shape of its type.
    """
    try:
        return _decoder.decode(frame)
    except msgspec.DecodeError as error:
        if decode(frame) is None:
            return None
        raise BadMessage(str(error)) from error
