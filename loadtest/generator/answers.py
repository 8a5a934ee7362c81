"""Decoding of the server's messages: only the fields that a load test needs.

Other fields are skipped, to handle thousands of messages per second.
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
    """Parts of a result's latency in order, as sent with `latency=true`."""

    queue_ms: float
    step_ms: float
    handover_ms: float
    decode_ms: float
    write_ms: float  # of the connection's previous result


class Report(StepTimings, frozen=True):
    """Fields that tutti adds to a result."""

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
    """A `Metadata` message: the last one before the close."""


class ServerError(msgspec.Struct, frozen=True, tag="Error"):
    """An `Error` message: the server rejected a message."""

    description: str = ""


_decoder: msgspec.json.Decoder[Answer | Summary | ServerError] = msgspec.json.Decoder(Answer | Summary | ServerError)


def decode_answer(frame: bytes) -> Answer | Summary | ServerError | None:
    """Return the message in a text frame; None for a type that a load test does not use.

    Raises:
        BadMessage: it does not have the fields of its type.
    """
    try:
        return _decoder.decode(frame)
    except msgspec.DecodeError as error:
        if decode(frame) is None:
            return None
        raise BadMessage(str(error)) from error
