"""Deepgram's answer to an uploaded recording. Pure. Source: protocols.md 3.11."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.protocols.deepgram.messages import Alternatives, ModelCard
from server.protocols.deepgram.transcript import alternative
from server.text.formatting import FormattedWord


class Summary(msgspec.Struct):
    """What was recognised with what."""

    transaction_key: str
    request_id: str
    sha256: str
    created: str
    duration: float
    channels: int
    models: list[str]
    model_info: dict[str, dict[str, str]]


class Channels(msgspec.Struct):
    """One transcript a channel; utterances are not split off."""

    channels: list[Alternatives]
    utterances: list[str]


class Answer(msgspec.Struct):
    """The whole answer."""

    metadata: Summary
    results: Channels


def recording_answer(
    transcripts: Sequence[Sequence[FormattedWord]],
    *,
    request_id: str,
    sha256: str,
    created: str,
    duration_s: float,
    model: ModelCard,
    punctuated: bool,
) -> bytes:
    """Build the answer from each channel's words."""
    summary = Summary(
        transaction_key="deprecated",
        request_id=request_id,
        sha256=sha256,
        created=created,
        duration=round(duration_s, 6),
        channels=len(transcripts),
        models=[model.uuid],
        model_info={model.uuid: model.info},
    )
    channels = [Alternatives((alternative(words, punctuated),)) for words in transcripts]
    return msgspec.json.encode(Answer(summary, Channels(channels, [])))
