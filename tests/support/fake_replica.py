"""A replica that answers by rule (`fake_recognition`) on a real socket, and does wrong when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import msgspec
from fake_recognition import FakeRecognition, Shape
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one connection; the defaults are good manners."""

    refuse: int = 0  # an HTTP status instead of the WebSocket
    retry_after: str | None = None
    hear: int | None = None  # frames, then the end
    say: int | None = None  # frames, then the end
    code: int | None = None  # of that end; None: the socket is cut
    drain: bool = False  # that end is a drain: a ticket or what there is, then 1012
    hang: bool = False  # reads nothing more, and says nothing
    keys: tuple[str, ...] | None = None  # others than the replica's


class FakeReplica:
    """Serves on a free loopback port; `fates` gives each connection its fate, by number."""

    def __init__(
        self,
        fates: Callable[[int], Fate] = lambda _: Fate(),
        keys: tuple[str, ...] = ("k",),
        shape: Shape | None = None,
    ) -> None:
        self._fates = fates
        self._keys = keys
        self._shape = shape or Shape(rate=16000)
        self.streams: list[FakeRecognition] = []
        self.queries: list[dict[str, list[str]]] = []
        self.handshakes = 0
        self.port = 0
        self._moved = asyncio.Event()
        self.heard: list[str] = []  # control messages, of all connections

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"ws://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeReplica]:
        """Serve; connections that are open at the end are cut."""
        settings = {"compression": None, "max_queue": None, "close_timeout": 1.0}
        async with serve(self._talk, "127.0.0.1", port, process_request=self._admit, **settings) as server:
            self.port = int(next(iter(server.sockets)).getsockname()[1])
            self._server = server
            yield self
            self.hang_up()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when it holds; it is looked at after every frame."""
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    def hang_up(self) -> None:
        """Cut every connection."""
        for connection in self._server.connections:
            connection.transport.abort()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        fate = self._fates(self.handshakes)
        self.handshakes += 1
        self.queries.append(parse_qs(urlsplit(request.path).query))
        connection.fate = fate
        if not fate.refuse:
            return None
        response = connection.respond(HTTPStatus(fate.refuse), '{"err_msg":"not now"}')
        if fate.retry_after is not None:
            response.headers["Retry-After"] = fate.retry_after
        return response

    async def _talk(self, connection: ServerConnection) -> None:
        fate: Fate = connection.fate
        stream = FakeRecognition(self._shape, self._keys if fate.keys is None else fate.keys)
        self.streams.append(stream)
        heard = said = 0
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                heard += 1
                if isinstance(frame, str):
                    self.heard.append(msgspec.json.decode(frame)["type"])
                for answer in stream.hear(frame):
                    if said == fate.say:
                        return await self._leave(connection, stream, fate)
                    said += 1
                    await connection.send(msgspec.json.encode(answer).decode())
                self._moved.set()
                if stream.closed:
                    return await connection.close(1000)
                if heard == fate.hear:
                    return await self._leave(connection, stream, fate)
        return None

    async def _leave(self, connection: ServerConnection, stream: FakeRecognition, fate: Fate) -> None:
        if fate.hang:
            connection.transport.pause_reading()
            await connection.wait_closed()
        elif fate.drain:
            for answer in stream.drain():
                await connection.send(msgspec.json.encode(answer).decode())
            await connection.close(1012)
        elif fate.code is None:
            connection.transport.abort()
        else:
            await connection.close(fate.code, "as it was told")
