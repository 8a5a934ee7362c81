"""Finals of several channels in the order in which they were said: by the start of their first words. Pure.

A final waits while another channel has words that began earlier and are in no final yet, and until all channels are
decoded up to its end. Later results of its channel wait too. The wait is bounded by the longest segment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from server.recognition.events import Event, Final, Partial


@dataclass(frozen=True, slots=True)
class OpenSpeech:
    """Words of one channel that are in no final yet; infinity: there are none, or none will come."""

    first_word_s: float  # start of the first of them
    decoded_s: float  # further ones end later


class SpokenOrder:
    """Holds events back until their final is due, and marks finals that overlap with words of another channel."""

    def __init__(self, channels: int) -> None:
        self._held: list[deque[Event]] = [deque() for _ in range(channels)]  # each begins with a final
        self._said_s = [0.0] * channels  # end of the last word in a final that was sent

    def take(self, events: Sequence[Event], speech: Callable[[int], OpenSpeech]) -> list[Event]:
        """Take events of any channels in their order; return those that are due. `speech` is of a channel now."""
        due: list[Event] = []
        for event in events:
            channel = getattr(event, "channel", None)
            if channel is None or not (self._held[channel] or _has_words(event)):
                due.append(event)
            else:
                self._hold(self._held[channel], event)
        if any(self._held):
            self._release(due, speech)
        return due

    @staticmethod
    def _hold(held: deque[Event], event: Event) -> None:
        if held and isinstance(event, Partial) and isinstance(held[-1], Partial):
            held.pop()  # out of date
        held.append(event)

    def _release(self, due: list[Event], speech: Callable[[int], OpenSpeech]) -> None:
        known = [speech(channel) for channel in range(len(self._held))]
        while heads := [(_start_s(held[0]), channel) for channel, held in enumerate(self._held) if held]:
            start_s, channel = min(heads)
            held = self._held[channel]
            final = held[0]
            assert isinstance(final, Final), "a final begins what is held"
            end_s = final.words[-1].end_s
            others = [other for other in range(len(known)) if other != channel]
            if any(
                not self._held[other] and (known[other].first_word_s < start_s or known[other].decoded_s < end_s)
                for other in others
            ):
                return
            overlap = any(self._said_s[other] > start_s or self._begins_s(other, known) < end_s for other in others)
            due.append(replace(final, overlap=True) if overlap else final)
            self._said_s[channel] = max(self._said_s[channel], end_s)
            held.popleft()
            while held and not _has_words(held[0]):
                due.append(held.popleft())

    def _begins_s(self, channel: int, known: Sequence[OpenSpeech]) -> float:
        """Return the start of a channel's first word that was not sent in a final."""
        held = self._held[channel]
        return _start_s(held[0]) if held else known[channel].first_word_s


def _has_words(event: Event) -> bool:
    return isinstance(event, Final) and bool(event.words)


def _start_s(event: Event) -> float:
    return event.words[0].start_s if isinstance(event, Final) and event.words else math.inf
