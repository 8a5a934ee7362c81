"""Items of a Realtime session: parts of the audio, each with a text that only grows. Pure.

An item is open from its first speech or stable word until it is committed, by the client or at the end of a turn. An
item committed by the client waits until recognition has caught up: words recognized until then belong to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.ctc.words import Word, continued, joined

MAX_CHARACTERS = 65_536  # of an uncommitted item: about an hour of speech


@dataclass(slots=True)
class Item:
    """One item. `started_s`: the time of its `speech_started`, None if none was sent or its end was."""

    id: str
    parts: list[str] = field(default_factory=list)
    characters: int = 0
    started_s: float | None = None
    audio_s: float = 0.0  # set when it is complete

    @property
    def text(self) -> str:
        """The text so far: all deltas joined."""
        return "".join(self.parts)

    def grow(self, words: Sequence[Word]) -> str:
        """Add words; return the delta."""
        before = self.parts[-1] if self.parts else ""
        delta = continued(before, joined([word.text for word in words]))
        if delta:
            self.parts.append(delta)
            self.characters += len(delta)
        return delta


class Items:
    """Assigns recognized words to items, in the order of the audio."""

    def __init__(self, prefix: str) -> None:
        """`prefix` makes item ids unique across sessions."""
        self._prefix = prefix
        self._made = 0
        self._open: Item | None = None
        self._waiting: deque[Item | None] = deque()  # an item per unanswered flush; None: the audio was cleared
        self._assigned = 0  # words of the open segment that are assigned to items
        self._end_s = 0.0  # of the last complete item
        self.last_committed: str | None = None

    @property
    def waiting(self) -> bool:
        """Return whether a flush is unanswered."""
        return bool(self._waiting)

    @property
    def discarding(self) -> bool:
        """Return whether words recognized now belong to cleared audio."""
        return bool(self._waiting) and self._waiting[0] is None

    @property
    def current(self) -> Item | None:
        """The item of words recognized now, or None if it does not exist yet."""
        return self._waiting[0] if self._waiting else self._open

    def ensure(self) -> Item:
        """Return the current item; create it if necessary."""
        assert not self.discarding
        current = self.current
        if current is None:
            current = self._open = self._new()
        return current

    def commit(self) -> Item:
        """Commit the open item, even without words; it waits for the rest of its text."""
        item = self._open or self._new()
        self._open = None
        self._waiting.append(item)
        self.last_committed = item.id
        return item

    def clear(self) -> None:
        """Discard the open item, and words of the audio received so far."""
        self._open = None
        self._waiting.append(None)

    def flushed(self, end_s: float) -> Item | None:
        """Handle the answer to the oldest flush; return the item that it completes."""
        return self._complete(self._waiting.popleft(), end_s)

    def abandoned(self) -> list[Item]:
        """Return and forget the waiting items, for which no more text will come."""
        items = [item for item in self._waiting if item is not None]
        self._waiting.clear()
        return items

    def end_turn(self, end_s: float) -> Item | None:
        """Handle the end of a turn; return the item that it completes, or None."""
        item, self._open = self._open, None
        if item is not None:
            self.last_committed = item.id
        return self._complete(item, end_s)

    def new_stable(self, words: Sequence[Word], stable: int) -> Sequence[Word]:
        """Return the words of the open segment that became stable since the last call."""
        fresh = words[self._assigned : stable]
        self._assigned = max(self._assigned, stable)
        return fresh

    def remaining(self, words: Sequence[Word]) -> Sequence[Word]:
        """Return the words of a finished segment that were not returned before."""
        fresh, self._assigned = words[self._assigned :], 0
        return fresh

    def _new(self) -> Item:
        self._made += 1
        return Item(f"item_{self._prefix}{self._made:06d}")

    def _complete(self, item: Item | None, end_s: float) -> Item | None:
        if item is not None:
            item.audio_s = max(0.0, end_s - self._end_s)
        self._end_s = end_s
        return item
