"""Order of a resumable stream's results, and the places of its tickets among them.

Channels are answered in batches, so their results may come in any order. Here they go out in the order of the audio,
the same in every run: only then does a number of finals identify the finals that a client has. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from server.recognition.events import Event, Final
from server.recognition.saved_state import SavedChannel, SavedInput, SavedStream


@dataclass(slots=True, eq=False)
class _Mark:
    """Place of a ticket: the input side there, and the state of each channel once it is known."""

    audio: SavedInput
    channels: list[tuple[bytes, SavedChannel] | None]

    @property
    def complete(self) -> bool:
        return all(channel is not None for channel in self.channels)


class ResultOrder:
    """Puts the results of several channels into the order in which their steps were sent to the engine."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._order: deque[int | _Mark | list[Event]] = deque()  # a step is its channel's index
        self._early: list[deque[list[Event]]] = [deque() for _ in range(channels)]  # results before their turn
        self._incomplete: deque[_Mark] = deque()
        self._saved: SavedStream | None = None  # waits for `take_saved`
        self.finals = 0  # that went out
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

    def sent(self, channel: int) -> None:
        """Append a step of this channel, which was sent to the engine."""
        self._order.append(channel)

    def mark(self, audio: SavedInput) -> None:
        """Append the place of a ticket; `exported` takes the state of every channel there."""
        mark = _Mark(audio, [None] * self._channels)
        self._incomplete.append(mark)
        self._order.append(mark)

    def add(self, events: Sequence[Event]) -> list[Event]:
        """Append events that answer no step; return all events that are due."""
        if events:
            self._order.append(list(events))
        return self.due()

    def answered(self, channel: int, events: Sequence[Event]) -> list[Event]:
        """Take the events of this channel's oldest step; return all events that are due."""
        self._early[channel].append(list(events))
        return self.due()

    def exported(self, channel: int, state: bytes, saved: SavedChannel) -> list[Event]:
        """Take one channel's state for the oldest mark that lacks it; return all events that are due."""
        mark = next(mark for mark in self._incomplete if mark.channels[channel] is None)
        mark.channels[channel] = state, saved
        if mark.complete:
            self._incomplete.remove(mark)
        return self.due()

    def take_saved(self) -> SavedStream | None:
        """Return the state at a mark that was reached, once; later events wait for this call."""
        saved, self._saved = self._saved, None
        return saved

    def due(self) -> list[Event]:
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
        self.finals += sum(isinstance(event, Final) for event in events)

    def _reach(self, mark: _Mark) -> None:
        states, channels = zip(*(channel for channel in mark.channels if channel is not None), strict=True)
        self._saved = SavedStream(mark.audio, channels, states, self.finals)
