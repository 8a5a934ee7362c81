"""The server's messages: the few fields that a load test needs.

At thousands of messages a second the rest is skipped.
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
    """Added by `latency=true`: the parts of the latency of this result, in order."""

    queue_ms: float
    step_ms: float
    handover_ms: float
    decode_ms: float
    write_ms: float  # of the connection's result before it


class Report(StepTimings, frozen=True):
    """The fields that tutti adds to a result."""

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


class Summary(msgspec.Struct, frozen=True, tag="Metadata"):
    """`Metadata`: the last message before the close."""


class ServerError(msgspec.Struct, frozen=True, tag="Error"):
    """`Error`: the server rejected a message."""

    description: str = ""


_decoder: msgspec.json.Decoder[Answer | Summary | ServerError] = msgspec.json.Decoder(Answer | Summary | ServerError)


def decode_answer(frame: bytes) -> Answer | Summary | ServerError | None:
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
