"""The items of a Realtime session: stretches of audio, each with a text that only grows. Pure.

An item is open from its first speech or stable word until it is committed, by the client or by the end of a turn. What
a client commits is complete only when recognition has caught up: until then the item waits, and what is said is its.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.ctc.words import Word

MAX_CHARACTERS = 65_536  # of an item that nobody commits: about an hour of speech


@dataclass(slots=True)
class Item:
    """One item. `started` says whether its client knows that speech began."""

    id: str
    parts: list[str] = field(default_factory=list)
    characters: int = 0
    started: bool = False
    audio_s: float = 0.0  # known when it is complete

    @property
    def text(self) -> str:
        """What was said so far, exactly as the deltas told it."""
        return "".join(self.parts)

    def grow(self, words: Sequence[Word]) -> str:
        """Add words; return the text to append."""
        text = " ".join([word.text for word in words])
        delta = " " + text if self.parts and text else text
        if delta:
            self.parts.append(delta)
            self.characters += len(delta)
        return delta


class Items:
    """Which item is whose, in the order of audio."""

    def __init__(self, prefix: str) -> None:
        """`prefix` makes the names unique among sessions."""
        self._prefix = prefix
        self._made = 0
        self._open: Item | None = None
        self._waiting: deque[Item | None] = deque()  # flushes on their way; None: the client threw its audio away
        self._told = 0  # words of the recogniser's open segment that an item has
        self._end_s = 0.0  # of the last complete item
        self.last_committed: str | None = None

    @property
    def waiting(self) -> bool:
        """Whether recognition has not yet caught up with a flush."""
        return bool(self._waiting)

    @property
    def discarding(self) -> bool:
        """Whether what is said now was thrown away."""
        return bool(self._waiting) and self._waiting[0] is None

    @property
    def current(self) -> Item | None:
        """Whose words are being said, if anybody's yet."""
        return self._waiting[0] if self._waiting else self._open

    def ensure(self) -> Item:
        """The current item, made if there is none."""
        assert not self.discarding
        current = self.current
        if current is None:
            current = self._open = self._new()
        return current

    def commit(self) -> Item:
        """The client commits: the open item, maybe one without a word, waits for its text."""
        item = self._open or self._new()
        self._open = None
        self._waiting.append(item)
        self.last_committed = item.id
        return item

    def clear(self) -> None:
        """The client throws away what it has not committed."""
        self._open = None
        self._waiting.append(None)

    def flushed(self, end_s: float) -> Item | None:
        """Recognition caught up with the oldest flush: return the item that is complete now."""
        return self._complete(self._waiting.popleft(), end_s)

    def abandoned(self) -> list[Item]:
        """No more text will come: return what still waits for it."""
        items = [item for item in self._waiting if item is not None]
        self._waiting.clear()
        return items

    def end_turn(self, end_s: float) -> Item | None:
        """A turn ended by itself: return the item that is complete now, if there is one."""
        item, self._open = self._open, None
        if item is not None:
            self.last_committed = item.id
        return self._complete(item, end_s)

    def news(self, words: Sequence[Word], stable: int) -> Sequence[Word]:
        """Words of the open segment that have become stable since they were asked for last."""
        fresh = words[self._told : stable]
        self._told = max(self._told, stable)
        return fresh

    def rest(self, words: Sequence[Word]) -> Sequence[Word]:
        """Words of a segment that ends, but for those told already."""
        fresh, self._told = words[self._told :], 0
        return fresh

    def _new(self) -> Item:
        self._made += 1
        return Item(f"item_{self._prefix}{self._made:06d}")

    def _complete(self, item: Item | None, end_s: float) -> Item | None:
        if item is not None:
            item.audio_s = max(0.0, end_s - self._end_s)
        self._end_s = end_s
        return item
