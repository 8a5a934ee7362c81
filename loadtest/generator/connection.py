"""WebSocket client connection with little overhead per message.

Uses the websockets library's sans-I/O protocol for the handshake and `frames.py` afterwards, on an event loop
transport. There is no task, queue or future per message, so that one process can play hundreds of streams on the
machine of the server under test. A listener interprets the messages.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.uri import WebSocketURI, parse_uri

from loadtest.errors import BadFrame
from loadtest.generator.frames import CLOSE, PING, PONG, TEXT, FrameReader, masked
from tutti_asr_client.address import listen_url
from tutti_asr_client.errors import Refused, Unreachable
from tutti_asr_client.live import ABNORMAL_CLOSE, refusal

HEAD_END = b"\r\n\r\n"
SWITCHED = b"HTTP/1.1 101"
PROTOCOL_ERROR = 1002
"""Protocol error. Source: RFC 6455 §7.4.1."""


class Listener(Protocol):
    """Receives the events of a connection with their time."""

    def opened(self, now: float) -> None:
        """The server has accepted the stream."""
        ...

    def message(self, frame: bytes, now: float) -> None:
        """A text message was received."""
        ...

    def refused(self, refusal: Refused, now: float) -> None:
        """The server refused the handshake with an HTTP error."""
        ...

    def closed(self, code: int, reason: str, now: float) -> None:
        """The connection has ended."""
        ...


class Connection(asyncio.Protocol):
    """One connection. Calls `opened`, `message`, then `closed` of its listener; or only `refused`."""

    __slots__ = (
        "_clock", "_code", "_frames", "_handshake", "_head", "_headers", "_listener", "_over", "_reason", "_refusing",
        "_transport", "is_open",
    )  # fmt: skip

    def __init__(
        self, uri: WebSocketURI, headers: Mapping[str, str], listener: Listener, clock: Callable[[], float]
    ) -> None:
        self.is_open = False  # messages can be sent
        self._handshake: ClientProtocol | None = ClientProtocol(uri)  # until the handshake is complete
        self._head = b""  # received part of the response's head
        self._refusing = False  # the response is an error, which may have a body
        self._headers = headers
        self._listener = listener
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._over = False  # `closed` or `refused` was called
        self._code, self._reason = ABNORMAL_CLOSE, ""

    def send(self, frame: bytes) -> None:
        """Send a masked frame; the transport buffers what the socket does not accept."""
        assert self._transport is not None
        self._transport.write(frame)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is open: send the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        assert self._handshake is not None
        request = self._handshake.connect()
        request.headers.update(self._headers)
        self._handshake.send_request(request)
        self._transport.writelines(self._handshake.data_to_send())

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        now = self._clock()
        if self._handshake is None:
            self._read(data, now)
        else:
            self._read_answer(self._handshake, data, now)

    def eof_received(self) -> None:
        """The server closed its side: a response without a length is complete now."""
        if self._handshake is not None:
            self._handshake.receive_eof()
            self._answered(self._handshake, self._clock())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the close code says more
        """The TCP connection has ended."""
        self.is_open = False
        if self._handshake is not None:
            self._reason = self._reason or "connection lost in the handshake"
        self._report_closed(self._clock())

    def _read_answer(self, handshake: ClientProtocol, data: bytes, now: float) -> None:
        """Pass the handshake response to the library, without the frames after a successful one."""
        if not self._refusing:
            self._head += data
            head, end, rest = self._head.partition(HEAD_END)
            if not end:
                return
            if head.startswith(SWITCHED):
                handshake.receive_data(head + end)
                self._answered(handshake, now)
                if rest and self.is_open:
                    self._read(rest, now)
                return
            self._refusing, data = True, self._head
        handshake.receive_data(data)
        self._answered(handshake, now)

    def _answered(self, handshake: ClientProtocol, now: float) -> None:
        for response in handshake.events_received():
            assert isinstance(response, Response)
            error = handshake.handshake_exc
            self._handshake = None
            if error is None:
                self.is_open = True
                self._listener.opened(now)
            elif isinstance(error, InvalidStatus):
                self._over = True
                self._listener.refused(refusal(error), now)
            else:
                self._reason = str(error)
                self._report_closed(now)
            if error is not None and self._transport is not None:
                self._transport.close()

    def _read(self, data: bytes, now: float) -> None:
        try:
            frames = self._frames.feed(data)
        except BadFrame as error:
            self._code, self._reason = PROTOCOL_ERROR, str(error)
            self.abort()
            return
        for opcode, payload in frames:
            if opcode == TEXT:
                self._listener.message(payload, now)
            elif opcode == PING:
                self.send(masked(PONG, payload))
            elif opcode == CLOSE and self.is_open:
                self.is_open = False
                if len(payload) >= 2:
                    self._code, self._reason = int.from_bytes(payload[:2], "big"), payload[2:].decode(errors="replace")
                self.send(masked(CLOSE, payload[:2]))  # the server ends the TCP connection: RFC 6455 §7.1.1

    def _report_closed(self, now: float) -> None:
        if not self._over:
            self._over = True
            self._listener.closed(self._code, self._reason, now)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections to one address, which is looked up once."""

    url: str
    uri: WebSocketURI
    address: tuple[str, int]
    headers: Mapping[str, str]
    clock: Callable[[], float]

    @classmethod
    async def to(cls, url: str, api_key: str | None, clock: Callable[[], float]) -> Dialer:
        """Look up the addresses of a `ws://` or `wss://` URL and use the first reachable one. Raises: Unreachable."""
        uri = parse_uri(url)
        headers = {} if api_key is None else {"Authorization": f"Token {api_key}"}
        loop = asyncio.get_running_loop()
        last_error: OSError = OSError("no address")
        try:
            addresses = await loop.getaddrinfo(uri.host, uri.port, type=socket.SOCK_STREAM)
        except OSError as error:
            addresses, last_error = [], error
        for *_, address in addresses:
            host, port = str(address[0]), int(address[1])
            try:
                transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
            except OSError as error:
                last_error = error
                continue
            transport.abort()
            return cls(url, uri, (host, port), headers, clock)
        raise Unreachable(url.partition("?")[0], str(last_error)) from last_error

    def connection(self, listener: Listener, language: str = "") -> Connection:
        """Return a connection that is not open yet, for this language or that of the URL."""
        uri = parse_uri(listen_url(self.url, {"language": language})) if language else self.uri
        return Connection(uri, self.headers, listener, self.clock)

    async def open(self, connection: Connection) -> None:
        """Open a connection; its events go to its listener. Raises: OSError."""
        host, port = self.address
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            host,
            port,
            ssl=True if self.uri.secure else None,
            server_hostname=self.uri.host if self.uri.secure else None,
        )
