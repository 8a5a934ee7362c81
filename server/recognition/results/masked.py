"""Results with their numbers masked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.recognition.events import Event, Final, Partial
from server.text.redaction import Redactor


def masked(event: Event, redactor: Redactor) -> Event:
    """Return an event with its words masked; the words from the first masked one on are not stable."""
    match event:
        case Partial():
            words, unmasked = redactor.partial(event.channel, event.words)
            stable = min(event.stable_words, unmasked)
            return Partial(event.channel, event.start_s, event.duration_s, words, stable)
        case Final():
            return replace(event, words=redactor.final(event.channel, event.words))
    return event


def masked_recording(finals: Sequence[Final], redactor: Redactor) -> list[Final]:
    """Return all finals of a recording with their words masked."""
    masked_words = redactor.recording([(final.channel, final.words) for final in finals])
    return [replace(final, words=words) for final, words in zip(finals, masked_words, strict=True)]
