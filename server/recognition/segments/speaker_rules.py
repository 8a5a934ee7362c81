"""How a session distinguishes speakers, and results without the words of other voices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from model.ctc.words import Word
from server.recognition.events import Final, Partial

SPEAKER_HZ, SPEAKER_WINDOW = 16_000, 1_280  # sample rate and step of the speaker model, in samples
FIRST = "first"  # the voice of the first words
MOST = 8  # speakers of a channel


@dataclass(frozen=True, slots=True)
class SpeakerRules:
    """How a session distinguishes speakers.

    `listens`: words of other voices than the first, or than an enrolled `voice`, are marked, or with `alone` left out.
    `at_end`: speakers are those of the whole recording, `minimum` to `maximum` of them.
    """

    minimum: int = 1
    maximum: int = MOST
    at_end: bool = False
    listens: bool = False
    alone: bool = False
    vectors: bool = False  # finals have the vector of their voice
    voice: bytes = field(default=b"", repr=False)  # vector of an enrolled voice, float32; empty: the first one counts


def others_in(words: Sequence[Word]) -> int:
    """Return the number of words by other voices than the one that is listened to."""
    return sum(word.speaker is not None and word.speaker.other for word in words)


def without_others(event: Final | Partial) -> Final | Partial:
    """Return a result without the words of other voices."""
    words = tuple([word for word in event.words if word.speaker is None or not word.speaker.other])
    if isinstance(event, Final):
        return replace(event, words=words)
    stable = event.stable_words - others_in(event.words[: event.stable_words])
    return msgspec.structs.replace(event, words=words, stable_words=stable)
