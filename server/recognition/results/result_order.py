"""The order of results of several channels: as they arrive, by the audio, or by the starts of their words. Pure.

Channels are answered in batches, so their results may come in any order. Those of a resumable stream are sent in the
order of the audio, which is the same in every run, so that a count of finals identifies the finals that a client has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from server.recognition.events import Event, Final, Partial
from server.recognition.saved_state import SavedChannel, SavedInput, SavedStream
from server.recognition.steps import Marker, StepTag, Work

States = tuple[bytes, tuple[bytes, ...]]
"""A channel's state of the model, and those of auxiliary models."""


@dataclass(slots=True, eq=False)
class Unanswered:
    """Number of steps sent whose results are not out, over all channels."""

    steps: int = 0


class ImmediateOrder:
    """Sends events as they arrive."""

    by_audio = False

    def send(self, work: list[Work]) -> None:
        """Record work that is sent to the engines: leave it as it is."""

    def answered(self, channel: int, results: list[Any]) -> list[Event]:
        """Return them all."""
        del channel
        return results

    def unasked(self, channel: int, events: list[Event]) -> list[Event]:
        """Return them all."""
        del channel
        return events

    def add(self, events: list[Event]) -> list[Event]:
        """Return them all."""
        return events

    def finishes(self) -> bool:
        """Nothing is held back."""
        return True


@dataclass(slots=True, eq=False)
class _Mark:
    """Place of a ticket: the state of the input side, and that of each channel once it is known."""

    audio: SavedInput
    channels: list[tuple[States, SavedChannel] | None]

    @property
    def complete(self) -> bool:
        return all(channel is not None for channel in self.channels)


class AudioOrder:
    """Sends the results of several channels in the order of their steps' audio, with the tickets' places among them."""

    by_audio = True

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self.unmarked = 0  # steps since the last mark, over all channels
        self._order: deque[int | _Mark | list[Event]] = deque()  # a step is its channel's index
        self._early: list[deque[list[Event]]] = [deque() for _ in range(channels)]  # results that arrived early
        self._incomplete: deque[_Mark] = deque()
        self._saved: SavedStream | None = None  # waits for `take_saved`
        self.finals = 0  # that went out
        self.ends_s: list[float | None] = [None] * channels  # of the last word in their finals
        self._finished = False

    def finishes(self) -> bool:
        """Whether everything went out; true once."""
        if self._order or self._finished:
            return False
        self._finished = True
        return True

    @property
    def marking(self) -> bool:
        """Whether a mark waits for the state of a channel."""
        return bool(self._incomplete)

    def send(self, work: list[Work]) -> None:
        """Sort work by audio time, independent of message boundaries, flushes last; append its steps."""
        work.sort(key=_audio_first)
        steps = [piece.channel for piece in work if isinstance(piece.tag, StepTag)]
        self._order += steps
        self.unmarked += len(steps)

    def mark(self, audio: SavedInput) -> None:
        """Append the place of a ticket; `exported` takes the state of every channel there."""
        self.unmarked = 0
        mark = _Mark(audio, [None] * self._channels)
        self._incomplete.append(mark)
        self._order.append(mark)

    def unasked(self, channel: int, events: list[Event]) -> list[Event]:
        """Return them: `add` puts them after the steps sent so far."""
        del channel
        return events

    def add(self, events: list[Event]) -> list[Event]:
        """Append events that answer no step; return all events that are due."""
        if events:
            self._order.append(events)
        return self._due()

    def answered(self, channel: int, results: list[Any]) -> list[Event]:
        """Take the events of this channel's oldest step; return all events that are due."""
        self._early[channel].append(results)
        return self._due()

    def exported(self, channel: int, states: States, saved: SavedChannel) -> None:
        """Take one channel's states for the oldest mark that lacks it; `add` returns what is due then."""
        mark = next(mark for mark in self._incomplete if mark.channels[channel] is None)
        mark.channels[channel] = states, saved
        if mark.complete:
            self._incomplete.remove(mark)

    def take_saved(self) -> SavedStream | None:
        """Return the state at a mark that was reached, once; later events wait for this call."""
        saved, self._saved = self._saved, None
        return saved

    def _due(self) -> list[Event]:
        """Return the events up to the next unanswered step or incomplete mark, or to a mark that is reached now."""
        events: list[Event] = []
        while self._order and self._saved is None:
            item = self._order[0]
            if isinstance(item, _Mark):
                if not item.complete:
                    break
                self._reach(item)
            elif isinstance(item, list):
                self._send(item, events)
            elif self._early[item]:
                self._send(self._early[item].popleft(), events)
            else:
                break
            self._order.popleft()
        return events

    def _send(self, events: Sequence[Event], to: list[Event]) -> None:
        to += events
        for event in events:
            if isinstance(event, Final):
                self.finals += 1
                if event.words:
                    self.ends_s[event.channel] = event.words[-1].end_s

    def _reach(self, mark: _Mark) -> None:
        pairs, channels = zip(*(channel for channel in mark.channels if channel is not None), strict=True)
        states, auxiliary = zip(*pairs, strict=True)
        self._saved = SavedStream(mark.audio, channels, states, auxiliary, self.finals, tuple(self.ends_s))


ResultOrder = ImmediateOrder | AudioOrder
"""Decides when the results of a session are sent. `by_audio`: events that answer no step wait for earlier steps."""


def _audio_first(piece: Work) -> tuple[bool, int]:
    """Key that puts steps of audio in the order of the audio, and the flushes of all channels after them."""
    flush = isinstance(piece.tag, StepTag) and piece.tag.marker is not Marker.AUDIO
    return flush, 0 if flush else piece.tag.end_sample


@dataclass(frozen=True, slots=True)
class OpenSpeech:
    """Words of one channel that are in no final yet; infinity: there are none, or none will come."""

    first_word_s: float  # start of the first of them
    decoded_s: float  # further ones end later


class SpokenOrder:
    """Puts finals in the order in which they were said, by the start of their first words, and marks those that overlap
    with words of another channel.

    A final waits while another channel has words that began earlier and are in no final yet, and until all channels are
    decoded up to its end. Later results of its channel wait too. The wait is bounded by the longest segment.
    """

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
