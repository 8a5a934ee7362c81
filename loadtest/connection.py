"""A WebSocket client connection at the least cost per message.

A thin shell: websockets' sans-I/O protocol on an event loop transport. It adds no task, no queue and
no future to a message, so that one process can carry hundreds of streams beside the server under test.
What a message means is its listener's business.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from clients.live import ABNORMAL_CLOSE, refusal

MAX_MESSAGE_BYTES = 1 << 20


class Listener(Protocol):
    """Is told what happens on a connection, with the clock's time."""

    def opened(self, now: float) -> None:
        """The server has accepted the stream."""
        ...

    def message(self, frame: bytes, now: float) -> None:
        """A text message has come."""
        ...

    def refused(self, problem: str) -> None:
        """The server answered the handshake with an HTTP error."""
        ...

    def closed(self, code: int, reason: str, now: float) -> None:
        """The connection has ended."""
        ...


class Connection(asyncio.Protocol):
    """One connection. Tells its listener `opened`, messages, then `closed`; or `refused` alone."""

    def __init__(
        self, uri: WebSocketURI, headers: Mapping[str, str], listener: Listener, clock: Callable[[], float]
    ) -> None:
        self._wire = ClientProtocol(uri, max_size=MAX_MESSAGE_BYTES)
        self._headers = headers
        self._listener = listener
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._answered = False  # the handshake has been answered, for good or ill

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._wire.state is State.OPEN

    def send(self, message: bytes) -> None:
        """Send a binary message; what the socket does not take at once is kept by the transport."""
        self._wire.send_binary(message)
        self._flush()

    def send_text(self, message: bytes) -> None:
        """Send a text message."""
        self._wire.send_text(message)
        self._flush()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection stands: ask for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        request = self._wire.connect()
        request.headers.update(self._headers)
        self._wire.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        now = self._clock()
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    self._listener.message(bytes(event.data), now)
            else:
                self._handshake_answered(event, now)
        self._flush()

    def eof_received(self) -> None:
        """The server sends no more."""
        self._wire.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the close code says more
        """The TCP connection has ended."""
        self._wire.receive_eof()
        now = self._clock()
        if not self._answered:
            self._answered = True
            self._listener.closed(ABNORMAL_CLOSE, "connection lost in the handshake", now)
        elif self._wire.handshake_exc is None:
            code = self._wire.close_code
            self._listener.closed(ABNORMAL_CLOSE if code is None else code, self._wire.close_reason or "", now)

    def _handshake_answered(self, response: object, now: float) -> None:
        assert isinstance(response, Response)
        self._answered = True
        error = self._wire.handshake_exc
        if error is None:
            self._listener.opened(now)
        elif isinstance(error, InvalidStatus):
            self._listener.refused(str(refusal(error)))
        else:
            self._listener.closed(ABNORMAL_CLOSE, str(error), now)

    def _flush(self) -> None:
        assert self._transport is not None
        for part in self._wire.data_to_send():
            if part:
                self._transport.write(part)
            else:
                self._transport.close()


@dataclass(frozen=True, slots=True)
class Dialler:
    """Opens connections to one address, which was looked up once."""

    uri: WebSocketURI
    address: tuple[str, int]
    headers: Mapping[str, str]
    clock: Callable[[], float]

    @classmethod
    async def to(cls, url: str, headers: Mapping[str, str], clock: Callable[[], float]) -> Dialler:
        """Look up the addresses of a `ws://` or `wss://` URL; the first that answers is taken. Raises: OSError."""
        uri = parse_uri(url)
        loop = asyncio.get_running_loop()
        unanswered: OSError = OSError("no address")
        for *_, address in await loop.getaddrinfo(uri.host, uri.port, type=socket.SOCK_STREAM):
            host, port = str(address[0]), int(address[1])
            try:
                transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
            except OSError as error:
                unanswered = error
                continue
            transport.abort()
            return cls(uri, (host, port), headers, clock)
        raise unanswered

    def connection(self, listener: Listener) -> Connection:
        """A connection that is not open yet."""
        return Connection(self.uri, self.headers, listener, self.clock)

    async def open(self, connection: Connection) -> None:
        """Begin a connection; the rest is told to its listener. Raises: OSError."""
        host, port = self.address
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            host,
            port,
            ssl=True if self.uri.secure else None,
            server_hostname=self.uri.host if self.uri.secure else None,
        )
