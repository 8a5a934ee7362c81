"""Joins short audio messages until they complete a step, because most of the cost of a message is independent of its
size.

Clients such as Pipecat send 20 ms at a time, a quarter of a step. Three of four such messages are only stored here;
with the fourth, all are handled as one message of 80 ms. Pure. Results do not depend on message boundaries, so joining
does not change them. All other messages are handled after the audio before them.
"""

from __future__ import annotations

from typing import TypeGuard

BRACE = ord("{")  # first byte of a binary message that may be a control message


class ShortMessages:
    """Messages of one connection that complete no step."""

    __slots__ = ("_kept", "room")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self.room = 0  # while fewer bytes follow, the owner has nothing to do

    def __bool__(self) -> bool:
        """Whether a message is kept."""
        return bool(self._kept)

    def make_room(self, samples: int, frame_bytes: int) -> None:
        """Keep messages that have fewer than `samples` samples in all; `frame_bytes`: size of one sample of all
        channels.

        If one of the two is 0, keep none. The messages may be preceded by an incomplete sample.
        """
        self.room = (samples - 1) * frame_bytes + 1 if samples and frame_bytes else 0

    def take(self, message: bytes | str) -> bool:
        """Keep a message if it is audio that completes no step; return whether it was kept."""
        if len(message) >= self.room or not is_audio(message):
            return False
        self._kept.append(message)
        self.room -= len(message)
        return True

    def release(self, last: bytes = b"") -> bytes:
        """Return the kept messages and then `last` as one message; nothing more is kept until there is room again."""
        joined, self.room = b"".join([*self._kept, last]), 0
        self._kept.clear()
        return joined


def is_audio(message: bytes | str) -> TypeGuard[bytes]:
    """Whether a message can only be audio: neither text, nor empty, nor a control message in a binary one."""
    return isinstance(message, bytes) and len(message) > 0 and message[0] != BRACE
