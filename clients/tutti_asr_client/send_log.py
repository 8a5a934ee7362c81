"""Bounded log of a stream's audio and control messages in order, kept for a replay after a lost connection.

Owns the bytes, their limit, and how far they were sent on the current connection. Positions are bytes of audio from the
start of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

PIECE_BYTES = 2**15
"""Largest entry of audio: a second at 16 kHz, far below any server's message limit."""

CONTROL_BYTES = 256
"""Least size that a control message counts as within the limit."""


@dataclass(slots=True, eq=False)
class Control:
    """A control message of the client, and the answers and tickets that cover it."""

    kind: str
    text: str  # as it is sent
    at: int  # bytes of audio before it
    channels: frozenset[int] = frozenset()  # channels that answer it
    pending: set[int] = field(default_factory=set)  # channels whose answer is due on this connection
    delivered: set[int] = field(default_factory=set)  # channels whose answer the caller has
    final_number: int = 0  # number of the final that was its last answer, counted over the stream
    confirmed: bool = False  # answered on this connection
    in_ticket: bool = False  # contained in the latest ticket
    terms: tuple[str, ...] = ()  # of a Context: all terms in force, as its answer lists them

    @property
    def size(self) -> int:
        """Size within the limit."""
        return max(CONTROL_BYTES, len(self.text))

    @property
    def answered(self) -> bool:
        """True once the caller has every answer."""
        return bool(self.channels) and self.delivered >= self.channels


@dataclass(frozen=True, slots=True)
class Audio:
    """A piece of audio."""

    pcm: bytes
    at: int

    @property
    def end(self) -> int:
        """Position after its last byte."""
        return self.at + len(self.pcm)


Entry = Audio | Control


class SendLog:
    """Bounded queue of entries with a read position; the oldest sent entries are dropped first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._next = 0  # index of the entry to send next
        self._from = 0  # position at which this connection's audio starts
        self.first = 0  # position of the oldest audio in memory
        self.end = 0  # position after the latest audio

    @property
    def held_bytes(self) -> int:
        """Bytes in memory; a control message counts as at least `CONTROL_BYTES`."""
        return self._size

    @property
    def unsent(self) -> bool:
        """True while there are entries to send on this connection."""
        return self._next < len(self._entries)

    @property
    def sent(self) -> int:
        """Position up to which audio was sent on this connection."""
        for index in range(self._next, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, Audio):
                return max(entry.at, self._from)
        return self.end

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes fit without dropping an entry that was never sent."""
        return self._size + size <= self._limit or self._next > 0 or not self._entries

    def add_audio(self, pcm: bytes) -> None:
        """Append audio of at most `PIECE_BYTES`."""
        self._append(Audio(pcm, self.end), len(pcm))
        self.end += len(pcm)

    def add_control(self, control: Control) -> None:
        """Append a control message."""
        self._append(control, control.size)

    def _append(self, entry: Entry, size: int) -> None:
        while self._entries and self._next > 0 and self._size + size > self._limit:
            self._drop_oldest()
        self._entries.append(entry)
        self._size += size

    def _drop_oldest(self) -> None:
        oldest = self._entries.popleft()
        self._next = max(0, self._next - 1)
        if isinstance(oldest, Audio):
            self._size -= len(oldest.pcm)
            self.first = oldest.end
        else:
            self._size -= oldest.size

    def drop_before(self, position: int, is_done: Callable[[Control], bool]) -> None:
        """Drop entries before `position`, and control messages at it for which `is_done` returns True."""
        while self._entries:
            oldest = self._entries[0]
            if isinstance(oldest, Audio):
                if oldest.end > position:
                    return
            elif oldest.at > position or (oldest.at == position and not is_done(oldest)):
                return
            self._drop_oldest()

    def detach(self) -> None:
        """Record that the connection is lost: every entry has to be sent again."""
        self._next = 0
        for control in self.controls():
            control.pending.clear()
            control.confirmed = False

    def seek(self, position: int) -> None:
        """Move the read position to the first audio that ends after `position`, or control message at or after it."""
        self._from = position
        self._next = 0
        for entry in self._entries:
            if (entry.end > position) if isinstance(entry, Audio) else (entry.at >= position):
                return
            self._next += 1

    def take(self) -> bytes | Control | None:
        """Return the next entry to send, or None at the end; audio is cut at the position of the last `seek`."""
        if self._next >= len(self._entries):
            return None
        entry = self._entries[self._next]
        self._next += 1
        if isinstance(entry, Control):
            return entry
        return entry.pcm if entry.at >= self._from else entry.pcm[self._from - entry.at :]

    def controls(self) -> list[Control]:
        """Return the control messages in memory."""
        return [entry for entry in self._entries if isinstance(entry, Control)]
