"""What a stream has said and may have to say again: audio and control messages, in their order.

Owns the bytes, their bound, and how far they have been sent on the present connection. Positions count bytes of audio
from the beginning of the stream. Knows no socket, no time and no message of the server's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

PIECE_BYTES = 2**15
"""Audio in one entry at most: a second of 16 kHz, far below any server's largest message."""

CONTROL_BYTES = 256
"""What a control message counts for: they are bounded like audio."""


@dataclass(slots=True, eq=False)
class Control:
    """A control message, and what is known of its fate."""

    kind: str
    text: str  # as it is sent
    at: int  # audio before it, in bytes
    channels: frozenset[int] = frozenset()  # that answer it
    awaited: set[int] = field(default_factory=set)  # whose answer is to come on this connection
    told: set[int] = field(default_factory=set)  # whose answer the caller has had
    number: int = 0  # of the final that was its last answer
    here: bool = False  # this connection's server has answered it
    ticketed: bool = False  # the newest ticket knows of it

    @property
    def answered(self) -> bool:
        """Whether the caller has had every answer."""
        return bool(self.channels) and self.told >= self.channels


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
    """A bounded record with a reading place; the oldest entries go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._next = 0  # index of the entry to be sent next
        self._from = 0  # position from which audio is wanted on this connection
        self.first = 0  # position of the oldest audio that is held
        self.end = 0  # and the one after the newest

    @property
    def held_bytes(self) -> int:
        """What is kept in memory; a control message counts for a few hundred bytes."""
        return self._size

    @property
    def unsent(self) -> bool:
        """Whether anything is left for this connection."""
        return self._next < len(self._entries)

    @property
    def sent(self) -> int:
        """Position up to which this connection has had its audio."""
        for index in range(self._next, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, Audio):
                return max(entry.at, self._from)
        return self.end

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be added without losing what was never sent."""
        return self._size + size <= self._limit or self._next > 0 or not self._entries

    def add_audio(self, pcm: bytes) -> None:
        """Append a piece of audio, of `PIECE_BYTES` at most."""
        self._append(Audio(pcm, self.end), len(pcm))
        self.end += len(pcm)

    def add_control(self, control: Control) -> None:
        """Append a control message."""
        self._append(control, CONTROL_BYTES)

    def _append(self, entry: Entry, size: int) -> None:
        while self._entries and self._next > 0 and self._size + size > self._limit:
            self._forget()
        self._entries.append(entry)
        self._size += size

    def _forget(self) -> None:
        oldest = self._entries.popleft()
        self._next = max(0, self._next - 1)
        if isinstance(oldest, Audio):
            self._size -= len(oldest.pcm)
            self.first = oldest.end
        else:
            self._size -= CONTROL_BYTES

    def forget_before(self, position: int, settled: Callable[[Control], bool]) -> None:
        """Let go of the audio before a position, and of what was said before it; at it, of what is settled."""
        while self._entries:
            oldest = self._entries[0]
            if isinstance(oldest, Audio):
                if oldest.end > position:
                    return
            elif oldest.at > position or (oldest.at == position and not settled(oldest)):
                return
            self._forget()

    def detach(self) -> None:
        """No connection: nothing counts as sent."""
        self._next = 0
        for control in self.controls():
            control.awaited.clear()
            control.here = False

    def seek(self, position: int) -> None:
        """The next entry to be sent is the first one that reaches past a position, or was said at it."""
        self._from = position
        self._next = 0
        for entry in self._entries:
            if (entry.end > position) if isinstance(entry, Audio) else (entry.at >= position):
                return
            self._next += 1

    def take(self) -> bytes | Control | None:
        """The next thing to send; None when there is nothing left."""
        if self._next >= len(self._entries):
            return None
        entry = self._entries[self._next]
        self._next += 1
        if isinstance(entry, Control):
            return entry
        return entry.pcm if entry.at >= self._from else entry.pcm[self._from - entry.at :]

    def controls(self) -> list[Control]:
        """The control messages that are held."""
        return [entry for entry in self._entries if isinstance(entry, Control)]
