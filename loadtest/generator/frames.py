"""Building and parsing of WebSocket frames after the handshake. Sans-I/O.

The general parser of the websockets library took a third of the generator's CPU time (loadtest/LOG.md). Source: RFC
6455 §5.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from loadtest.errors import BadFrame

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

FINAL, MASKED = 0x80, 0x80
MEDIUM, LONG = 126, 127  # values of the length field: 2 or 8 bytes of length follow
MAX_MESSAGE_BYTES = 1 << 20


def masked(opcode: int, payload: bytes, key: bytes | None = None) -> bytes:
    """Return a whole message as one client frame, masked with `key` (4 bytes; random by default)."""
    mask = os.urandom(4) if key is None else key
    length = len(payload)
    if length < MEDIUM:
        head = struct.pack("!BB", FINAL | opcode, MASKED | length)
    elif length <= 0xFFFF:
        head = struct.pack("!BBH", FINAL | opcode, MASKED | MEDIUM, length)
    else:
        head = struct.pack("!BBQ", FINAL | opcode, MASKED | LONG, length)
    pad = np.frombuffer((mask * (length // 4 + 1))[:length], np.uint8)
    return head + mask + (np.frombuffer(payload, np.uint8) ^ pad).tobytes()


class FrameReader:
    """Parses received bytes into messages and control frames."""

    __slots__ = ("_fragments", "_opcode", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._fragments: list[bytes] = []
        self._opcode = CONTINUATION  # of the fragmented message

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (opcode, payload) of all complete messages and control frames.

        Raises:
            BadFrame: masked, too long, or a fragment out of order.
        """
        if self._rest:
            data = self._rest + data
        messages: list[tuple[int, bytes]] = []
        at, size = 0, len(data)
        while size - at >= 2:
            first, length = data[at], data[at + 1]
            body = at + 2
            if length >= MEDIUM:
                wide = 2 if length == MEDIUM else 8
                body += wide
                if size < body or length > LONG:
                    break
                length = int.from_bytes(data[at + 2 : body], "big")
            if length > MAX_MESSAGE_BYTES or size < body + length:
                break
            at = body + length
            payload = data[body:at]
            messages.append((first & 0x0F, payload) if self._is_whole(first) else self._joined(first, payload))
        self._rest = data[at:] if at < size else b""
        if len(self._rest) >= 2:
            self._refuse_unreadable()
        return [frame for frame in messages if frame[0] != CONTINUATION]

    def _is_whole(self, first: int) -> bool:
        """Whether a frame is a whole message, or a control frame, which may come between fragments."""
        return first & FINAL != 0 and (first & 0x08 != 0 or (first & 0x0F != CONTINUATION and not self._fragments))

    def _joined(self, first: int, payload: bytes) -> tuple[int, bytes]:
        """Return the message completed by this fragment; CONTINUATION if more fragments follow."""
        opcode = first & 0x0F
        if (opcode == CONTINUATION) is not bool(self._fragments) or opcode & 0x08:
            raise BadFrame("fragment out of order")
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._fragments.append(payload)
        if not first & FINAL:
            return CONTINUATION, b""
        whole = b"".join(self._fragments)
        self._fragments.clear()
        return self._opcode, whole

    def _refuse_unreadable(self) -> None:
        length = self._rest[1]
        if length & MASKED:
            raise BadFrame("masked frame from a server")
        wide = {MEDIUM: 2, LONG: 8}.get(length, 0)
        if wide and len(self._rest) >= 2 + wide and int.from_bytes(self._rest[2 : 2 + wide], "big") > MAX_MESSAGE_BYTES:
            raise BadFrame(f"message longer than {MAX_MESSAGE_BYTES} bytes")
