"""A replica with `FakeRecognition` on a real socket, with faults by connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.support.clients.fake_recognition import FakeRecognition, Shape


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one connection; by default none."""

    refuse: int = 0  # an HTTP status instead of the WebSocket
    retry_after: str | None = None
    hear: int | None = None  # frames received before the end
    say: int | None = None  # frames sent before the end
    code: int | None = None  # close code of that end; None: the socket is cut
    drain: bool = False  # that end is a drain: a ticket or finals, then 1012
    hang: bool = False  # that end is a hang: nothing is read or sent
    keys: tuple[str, ...] | None = None  # instead of the replica's


class FakeReplica:
    """Serves on a free loopback port; `faults` returns the faults of a connection by its number."""

    def __init__(
        self,
        faults: Callable[[int], Faults] = lambda _: Faults(),
        keys: tuple[str, ...] = ("k",),
        shape: Shape | None = None,
    ) -> None:
        self._fates = faults
        self._keys = keys
        self._shape = shape or Shape(rate=16000)
        self.streams: list[FakeRecognition] = []
        self.queries: list[dict[str, list[str]]] = []
        self.handshakes = 0
        self.port = 0
        self._moved = asyncio.Event()
        self.received: list[str] = []  # control messages, of all connections

    @property
    def url(self) -> str:
        """Address of the replica."""
        return f"ws://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeReplica]:
        """Serve; connections still open at the end are cut."""
        settings = {"compression": None, "max_queue": None, "close_timeout": 1.0}
        async with serve(self._talk, "127.0.0.1", port, process_request=self._admit, **settings) as server:
            self.port = int(next(iter(server.sockets)).getsockname()[1])
            self._server = server
            yield self
            self.hang_up()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true; checked after every frame."""
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    def hang_up(self) -> None:
        """Cut every connection."""
        for connection in self._server.connections:
            connection.transport.abort()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        fault = self._fates(self.handshakes)
        self.handshakes += 1
        self.queries.append(parse_qs(urlsplit(request.path).query))
        connection.fault = fault
        if not fault.refuse:
            return None
        response = connection.respond(HTTPStatus(fault.refuse), '{"err_msg":"not now"}')
        if fault.retry_after is not None:
            response.headers["Retry-After"] = fault.retry_after
        return response

    async def _talk(self, connection: ServerConnection) -> None:
        fault: Faults = connection.fault
        stream = FakeRecognition(self._shape, self._keys if fault.keys is None else fault.keys)
        self.streams.append(stream)
        frames = said = 0
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                frames += 1
                if isinstance(frame, str):
                    self.received.append(msgspec.json.decode(frame)["type"])
                for answer in stream.hear(frame):
                    if said == fault.say:
                        return await self._leave(connection, stream, fault)
                    said += 1
                    await connection.send(msgspec.json.encode(answer).decode())
                self._moved.set()
                if stream.closed:
                    return await connection.close(1000)
                if frames == fault.hear:
                    return await self._leave(connection, stream, fault)
        return None

    async def _leave(self, connection: ServerConnection, stream: FakeRecognition, fault: Faults) -> None:
        if fault.hang:
            connection.transport.pause_reading()
            await connection.wait_closed()
        elif fault.drain:
            for answer in stream.drain():
                await connection.send(msgspec.json.encode(answer).decode())
            await connection.close(1012)
        elif fault.code is None:
            connection.transport.abort()
        else:
            await connection.close(fault.code, "as configured")
