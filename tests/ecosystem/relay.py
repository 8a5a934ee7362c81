"""A TCP relay between a client and a server: it can change servers, and records what the server sends.

So the frames sent to each client can be checked in the same way, regardless of what the client reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Frame = dict[str, Any]
READ_BYTES = 2**16
WAIT_S = 20.0
TEXT, CLOSE = 0x1, 0x8  # RFC 6455, 5.2


@dataclass(eq=False)
class Connection:
    """One connection, with all bytes of both directions."""

    port: int  # of the server that it went to
    sent: bytearray = field(default_factory=bytearray)  # by the client
    received: bytearray = field(default_factory=bytearray)  # by the client
    over: bool = False

    @property
    def request(self) -> str:
        """The request line and the headers of the client."""
        return bytes(self.sent).partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def answer(self) -> str:
        """The status line and the headers of the server."""
        return bytes(self.received).partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def status(self) -> int:
        """The HTTP status; 0 before the answer."""
        words = self.answer.split(" ", 2)
        return int(words[1]) if len(words) > 1 else 0

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer, names in lowercase."""
        lines = self.answer.split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def body(self) -> bytes:
        """The answer after its headers."""
        return bytes(self.received).partition(b"\r\n\r\n")[2]

    @property
    def frames(self) -> list[Frame]:
        """The JSON messages of the server, in order."""
        return [json.loads(payload) for opcode, payload in self._websocket if opcode == TEXT]

    @property
    def results(self) -> list[Frame]:
        """The messages of type Results."""
        return [frame for frame in self.frames if frame["type"] == "Results"]

    @property
    def close_code(self) -> int | None:
        """The code with which the server closed."""
        codes = [struct.unpack("!H", payload[:2])[0] for opcode, payload in self._websocket if opcode == CLOSE]
        return codes[0] if codes else None

    @property
    def text(self) -> str:
        """The words of all finals."""
        return " ".join(
            word["word"] for f in self.results if f["is_final"] for word in f["channel"]["alternatives"][0]["words"]
        )

    def sent_word(self, word: str = "") -> bool:
        """Return whether the server has sent this word, the empty one being any."""
        texts = [result["channel"]["alternatives"][0]["transcript"] for result in self.results]
        texts += [frame.get("transcript", "") for frame in self.frames]
        return any(text and word in text.lower() for text in texts)

    @property
    def _websocket(self) -> list[tuple[int, bytes]]:
        """Opcode and payload of each complete frame. The server does not mask, and here does not split or compress."""
        found, data = [], self.body
        while len(data) >= 2:
            length, start = data[1] & 0x7F, 2
            if length >= 126:
                width = 2 if length == 126 else 8
                length, start = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
            if len(data) < start + length:
                break
            found.append((data[0] & 0x0F, data[start : start + length]))
            data = data[start + length :]
        return found


class Relay:
    """Listens on its own loopback port inside a `with` block."""

    def __init__(self, port: int) -> None:
        """`port`: that of the first server."""
        self.target = port
        self.connections: list[Connection] = []
        self._changed = threading.Condition()
        self._up = threading.Event()
        self._carrying: set[asyncio.Task[Any] | None] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="relay")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    @property
    def host(self) -> str:
        """Address and port for clients."""
        return f"127.0.0.1:{self._port}"

    def wait(self, condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
        """Return once a condition on the connections is true."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), [c.answer for c in self.connections]

    def only(self) -> Connection:
        """Return the only connection, once it has ended."""
        self.wait(lambda: self.connections and self.connections[-1].over)
        assert len(self.connections) == 1, [(c.request, c.answer, c.close_code) for c in self.connections]
        return self.connections[0]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._stop.wait()
        server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._carrying.add(asyncio.current_task())  # the event loop keeps only a weak reference
        connection = Connection(self.target)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            head = await reader.read(READ_BYTES)
            asked = head.lower()
            if b"upgrade: websocket" in asked or asked.startswith(b"post "):  # else a stray probe
                self._note(lambda: self.connections.append(connection))
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", connection.port)
            with contextlib.closing(there_writer):
                up = asyncio.create_task(self._copy(reader, there_writer, connection.sent, head))
                try:
                    await self._copy(there_reader, writer, connection.received)
                finally:
                    up.cancel()  # a server that has closed receives nothing more
        self._note(lambda: setattr(connection, "over", True))

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray, head: bytes = b""
    ) -> None:
        with contextlib.suppress(OSError):
            while data := head or await reader.read(READ_BYTES):
                head = b""
                self._note(lambda data=data: kept.extend(data))
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def _note(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()
