"""Raw connection of a hostile client: sends any bytes and reads responses.

Owns the socket and its timeouts, and counts every sent message.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from loadtest.errors import BadFrame
from loadtest.generator.frames import CLOSE, TEXT, FrameReader, masked

HANDSHAKE_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ANSWER_WITHIN_S = 5.0
LINGER_NONE = struct.pack("ii", 1, 0)  # close sends RST
READ_BYTES = 65_536


@dataclass(slots=True)
class Tally:
    """Counts of the hostile clients: attacks by name (`acts`), messages sent, responses and problems."""

    messages: int = 0
    acts: dict[str, int] = field(default_factory=Counter)
    statuses: dict[int, int] = field(default_factory=Counter)
    closes: dict[int, int] = field(default_factory=Counter)
    problems: dict[str, int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Target:
    """Target of the attacks: server, a valid key, and audio."""

    host: str
    port: int
    key: str
    audio: bytes  # 16-bit samples at 16 kHz
    file: bytes  # a recording in a container
    tally: Tally

    @contextlib.asynccontextmanager
    async def dial(self, *, receive_buffer: int | None = None) -> AsyncIterator[Line]:
        """Open a TCP connection, aborted on exit."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        try:
            sock.setblocking(False)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await asyncio.get_running_loop().sock_connect(sock, (self.host, self.port))
            yield Line(self, sock)
        finally:
            sock.close()

    def head(
        self, path: str, headers: Mapping[str, str] | None = None, *, key: str | None = "", method: str = "GET"
    ) -> bytes:
        """Return the head of a WebSocket handshake; omits headers with empty values, and the key if it is None."""
        wanted = {
            "Host": f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": HANDSHAKE_KEY,
            "Authorization": f"Token {key or self.key}" if key is not None else "",
            **(headers or {}),
        }
        lines = [f"{name}: {value}\r\n" for name, value in wanted.items() if value]
        return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1", "replace")

    def post(self, path: str, body: bytes, length: int | None = None, headers: str = "") -> bytes:
        """Return a request with this body; its head may claim another length."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Token {self.key}\r\n{headers}"
        return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


class End(Enum):
    """How a hostile client ends its connection."""

    ANY = auto()  # properly, by a reset or a half-close, or it waits for the server
    LEAVE = auto()  # the same before a stream is open
    CLOSE = auto()
    RESET = auto()
    WAIT = auto()  # up to a second
    ANSWER = auto()  # after a response
    HALF_ANSWER = auto()  # after a half-close and a response
    NONE = auto()  # at once


@dataclass(frozen=True, slots=True)
class Act:
    """What a hostile client does on one connection: a request, frames on the stream that it opens, and an end."""

    request: bytes
    frames: Sequence[bytes] = ()
    end: End = End.LEAVE
    blind: bool = False  # the frames follow at once, without a response
    messages: int = 1  # for which a frame counts
    pause_s: float = 0.0  # between frames
    receive_buffer: int | None = None


async def perform(target: Target, act: Act, rng: random.Random) -> None:
    """Play an attack on a connection of its own."""
    async with target.dial(receive_buffer=act.receive_buffer) as line:
        sent = await line.send(act.request)
        opened = act.blind or (sent and await line.answer() == 101)
        if act.frames and not opened:
            return
        for frame in act.frames:
            if not await line.send(frame, messages=act.messages):
                break
            await asyncio.sleep(act.pause_s)
        await _end(line, act.end, rng)


async def _end(line: Line, end: End, rng: random.Random) -> None:
    way = rng.randrange(4) if end in {End.ANY, End.LEAVE} else -1
    if end is End.CLOSE or (end is End.ANY and way == 0):
        await line.say('{"type":"CloseStream"}')
        await line.until_closed()
    elif end is End.RESET or way == 1:
        line.reset()
    elif end is End.WAIT or (end is End.LEAVE and way == 0):
        await line.until_closed(rng.random())
    elif end in {End.ANSWER, End.HALF_ANSWER}:
        if end is End.HALF_ANSWER:
            line.half_close()
        await line.answer()
    elif way == 2:
        line.half_close()
        await line.until_closed(rng.random())


class Line:
    """One connection. It is not an error if the server closes it."""

    def __init__(self, target: Target, sock: socket.socket) -> None:
        self.target = target
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._upgraded = False
        self.gone = False

    async def send(self, data: bytes, messages: int = 1) -> bool:
        """Send bytes that count as `messages`; returns False if the server accepts no more."""
        self.target.tally.messages += messages
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._loop.sock_sendall(self._sock, data)
        except (OSError, TimeoutError):
            self.gone = True
        return not self.gone

    async def say(self, text: str | bytes) -> bool:
        """Send a valid text message."""
        return await self.send(masked(TEXT, text if isinstance(text, bytes) else text.encode(errors="replace")))

    async def answer(self) -> int | None:
        """Return the status of the response to a request, None if there is none in time."""
        head = b""
        while b"\r\n\r\n" not in head:
            part = await self._read()
            if not part:
                return None
            head += part
        first, _, rest = head.partition(b"\r\n\r\n")
        words = first.split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        self.target.tally.statuses[status] += 1
        if status == 101:
            self._upgraded = True
            self._take(rest)
        return status

    async def open_stream(self, path: str, headers: Mapping[str, str] | None = None) -> bool:
        """Perform a valid handshake; returns whether a stream is open."""
        return await self.send(self.target.head(path, headers)) and await self.answer() == 101

    async def until_closed(self, within_s: float = ANSWER_WITHIN_S) -> None:
        """Read until the server closes, the connection ends or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.gone:
                    part = await self._read()
                    if not part:
                        return
                    self._take(part)

    def reset(self) -> None:
        """Reset the connection (RST)."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self._sock.close()
        self.gone = True

    def half_close(self) -> None:
        """Half-close: stop sending and keep reading."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await self._loop.sock_recv(self._sock, READ_BYTES)
        except (OSError, TimeoutError):
            return b""

    def _take(self, data: bytes) -> None:
        """Count the code of a close frame, after the handshake."""
        if not self._upgraded:
            return
        try:
            frames = self._frames.feed(data)
        except BadFrame as error:
            self.target.tally.problems[f"invalid frame from the server: {error}"] += 1
            self.gone = True
            return
        for opcode, payload in frames:
            if opcode == CLOSE:
                self.target.tally.closes[int.from_bytes(payload[:2], "big")] += 1
                self.gone = True
