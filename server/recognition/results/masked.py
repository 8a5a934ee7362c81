"""Results with their numbers masked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.recognition.events import Event, Final, Forked, ForkWords, Partial
from server.text.redaction import Redactor


def masked(event: Event, redactor: Redactor) -> Event:
    """Return an event with its words masked; the words from the first masked one on are not stable.

    A fork whose words have a number is dropped as if it had been refused: how the number is masked, if at all, is known
    with its final, and both ends of a turn have the same words.
    """
    match event:
        case Partial():
            words, unmasked = redactor.partial(event.channel, event.words)
            stable = min(event.stable_words, unmasked)
            return Partial(event.channel, event.start_s, event.duration_s, words, stable)
        case Final():
            return replace(event, words=redactor.final(event.channel, event.words))
        case Forked(channel=channel, found=ForkWords() as fork):
            plain = all(redactor.has_no_number(channel, words) for words in (fork.words, fork.running))
            return event if plain else replace(event, found=None)
    return event


def masked_recording(finals: Sequence[Final], redactor: Redactor) -> list[Final]:
    """Return all finals of a recording with their words masked."""
    masked_words = redactor.recording([(final.channel, final.words) for final in finals])
    return [replace(final, words=words) for final, words in zip(finals, masked_words, strict=True)]
