"""In which order a resumable stream's results go out, and where its tickets fall between them.

Channels are answered in batches, so their results may come in any order. Here they go out in the order of the audio,
the same in every run: only then does a number of finals say which ones a client has. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from server.recognition.events import Event, Final
from server.recognition.saved_state import SavedChannel, SavedInput, SavedStream


@dataclass(slots=True, eq=False)
class _Mark:
    """A place for a ticket: the input side there, and the channels as they come in."""

    audio: SavedInput
    channels: list[tuple[bytes, SavedChannel] | None]

    @property
    def complete(self) -> bool:
        return all(channel is not None for channel in self.channels)


class ResultOrder:
    """Steps of several channels, in the order in which they were handed to the engine."""

    def __init__(self, channels: int) -> None:
        self._count = channels
        self._order: deque[int | _Mark | list[Event]] = deque()
        self._early: list[deque[list[Event]]] = [deque() for _ in range(channels)]  # answers before their turn
        self._open: deque[_Mark] = deque()  # whose channels are not all in
        self._saved: SavedStream | None = None
        self.finals = 0  # that went out
        self._finished = False

    def finishes(self) -> bool:
        """Whether nothing is owed; true once."""
        if self._order or self._finished:
            return False
        self._finished = True
        return True

    @property
    def marking(self) -> bool:
        """Whether a ticket is on its way."""
        return bool(self._open)

    def pushed(self, channel: int) -> None:
        """A step of this channel went to the engine."""
        self._order.append(channel)

    def mark(self, audio: SavedInput) -> None:
        """The state behind the steps so far is wanted; every channel's is to be given to `exported`."""
        mark = _Mark(audio, [None] * self._count)
        self._open.append(mark)
        self._order.append(mark)

    def said(self, events: Sequence[Event]) -> list[Event]:
        """Something is to be said that answers no step; return what can be said now."""
        if events:
            self._order.append(list(events))
        return self.release()

    def answered(self, channel: int, events: Sequence[Event]) -> list[Event]:
        """The oldest step of this channel was answered; return what can be said now."""
        self._early[channel].append(list(events))
        return self.release()

    def exported(self, channel: int, state: bytes, saved: SavedChannel) -> list[Event]:
        """Take one channel of the oldest mark that lacks it; return what can be said now."""
        mark = next(mark for mark in self._open if mark.channels[channel] is None)
        mark.channels[channel] = state, saved
        if mark.complete:
            self._open.remove(mark)
        return self.release()

    def take_saved(self) -> SavedStream | None:
        """Return the state whose place has come, once; what comes behind it waits for that."""
        saved, self._saved = self._saved, None
        return saved

    def release(self) -> list[Event]:
        """Return what can be said now: all up to the next thing that is missing, or the next place for a ticket."""
        said: list[Event] = []
        while self._order and self._saved is None:
            item = self._order[0]
            if isinstance(item, _Mark):
                if not item.complete:
                    break
                self._save(item)
            elif isinstance(item, list):
                self._say(item, said)
            elif self._early[item]:
                self._say(self._early[item].popleft(), said)
            else:
                break
            self._order.popleft()
        return said

    def _say(self, events: Sequence[Event], said: list[Event]) -> None:
        said += events
        self.finals += sum(isinstance(event, Final) for event in events)

    def _save(self, mark: _Mark) -> None:
        states, channels = zip(*(channel for channel in mark.channels if channel is not None), strict=True)
        self._saved = SavedStream(mark.audio, channels, states, self.finals)
