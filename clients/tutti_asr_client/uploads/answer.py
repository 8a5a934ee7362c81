"""The server's answer to an uploaded recording, as a typed value. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tutti_asr_client.errors import BadMessage
from tutti_asr_client.messages import Channel, Word


class Utterance(msgspec.Struct, frozen=True):
    """With `utterances=True`: what one side said without a pause; `start` and `end` in seconds of the recording."""

    start: float
    end: float
    transcript: str
    channel: int = 0
    confidence: float = 0.0
    words: tuple[Word, ...] = ()


class Warned(msgspec.Struct, frozen=True):
    """A warning of the server, for example that a damaged part of the recording was left out."""

    type: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Transcription:
    """A transcribed recording: a transcript for each channel, one channel unless `multichannel=True`."""

    request_id: str
    duration: float
    channels: tuple[Channel, ...]
    utterances: tuple[Utterance, ...] = ()
    warnings: tuple[Warned, ...] = ()

    @property
    def text(self) -> str:
        """The text of the first channel."""
        return self.channels[0].alternatives[0].transcript

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the first channel, with times in seconds of the recording."""
        return self.channels[0].alternatives[0].words


class _Summary(msgspec.Struct):
    request_id: str
    duration: float
    warnings: tuple[Warned, ...] = ()


class _Results(msgspec.Struct):
    channels: tuple[Channel, ...]
    utterances: tuple[Utterance, ...] = ()


class _Answer(msgspec.Struct):
    metadata: _Summary
    results: _Results


def transcription(body: bytes) -> Transcription:
    """Return the transcription in the body of an answer.

    Raises:
        BadMessage: not an answer to a recording.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        raise BadMessage(f"the answer to an upload is invalid: {error}") from error
    results, summary = answer.results, answer.metadata
    if not results.channels or not all(channel.alternatives for channel in results.channels):
        raise BadMessage("the answer to an upload has a channel without a transcript")
    return Transcription(summary.request_id, summary.duration, results.channels, results.utterances, summary.warnings)
