"""uvicorn's configuration and HTTP protocol, and further ports: limits on request heads, status 400 for malformed
upgrades, and refusal of handshakes before ASGI while the replica is full or draining.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import structlog
import uvicorn
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Scope
from uvicorn.server import ServerState

from server.access.keys import Credentials
from server.configuration.addresses import ListenAddress, interfaces, listening_hosts, open_address
from server.errors import Refused
from server.http.access_log import AccessLog
from server.http.bounded_protocol import BoundedHttpProtocol
from server.operations.logs import take_request_id
from server.protocols.handshake import render_refusal
from server.replica import Replica
from server.streaming.client_timer import ClientTimer
from server.streaming.websocket import StreamWebSocket

HEAD_TIMEOUT_S = 10.0  # for the head of a request to arrive
MAX_HEAD_BYTES = 64 * 1024  # in addition to one read of the transport; the largest query of key terms is an eighth
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO_HANDSHAKE = "Invalid WebSocket handshake."
OTHER_VERSION = "This server has version 13 of the WebSocket protocol (RFC 6455); send Sec-WebSocket-Version: 13."
UPGRADE = {"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Version": "13"}
CHECKED = re.compile(rb"sec-websocket-|(?:host|origin|content-length|transfer-encoding)$")
NOT_ALONE = "A WebSocket handshake must wait for the responses to earlier requests."

MakeProtocols = Callable[[ServerState], Callable[[], asyncio.Protocol]]
"""Called with the state of a port, whose connections its protocols register themselves in; returns their factory."""
MakeSocket = Callable[[ASGIApp, set[Any]], asyncio.Protocol]
"""Called with the application of a port's streams, and with the set of its open connections."""
Refuse = Callable[[Scope], Response | None]
"""Called with the scope of a handshake. Returns the response of a refused one, None for others."""


class HeadProtocol(BoundedHttpProtocol):
    """uvicorn's protocol with a timeout of `HEAD_TIMEOUT_S` for each request head and early refusal of handshakes."""

    def __init__(self, *arguments: Any, refuse: Refuse | None, **options: Any) -> None:
        """`arguments` and `options` are uvicorn's."""
        super().__init__(*arguments, **options)
        self._refuse = refuse
        self._timer: ClientTimer | None = None  # runs while waiting for a head
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Wait for the rest of this head."""
        super().on_message_begin()
        if self._timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """End the wait for this head."""
        self._cancel()
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep a half-closed connection; no further head can follow."""
        self._cancel()
        return super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Parse the data; close the connection if a head is too large."""
        waiting = self._timer
        super().data_received(data)
        if self._timer is not None and self._timer is waiting:  # else the head began after a body in this read
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """Refuse the handshake or hand it over to the WebSocket protocol, which does not answer malformed ones."""
        # The response would be sent between others, and the new protocol would not know that writing is paused.
        if self.answering:
            self.send_400_response(NOT_ALONE)
            return
        self.stop_timers()
        path = unquote(self.url.partition(b"?")[0].decode("latin-1"))  # not validated yet: any bytes
        refusal = self._refuse and self._refuse({**self.scope, "type": "websocket", "path": path})
        if refusal is not None:
            self._answer(refusal)
        elif self._tokens(b"sec-websocket-version") != [b"13"]:
            self._answer(Response(OTHER_VERSION, HTTPStatus.UPGRADE_REQUIRED, UPGRADE))
        else:
            self._hand_over()
        # uvicorn drops this object now. Break its reference cycles, so that it does not need the garbage collector.
        self.parser = None  # type: ignore[assignment]
        self.headers = []

    def _answer(self, response: Response) -> None:
        lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
        date = [(name, value) for name, value in self.server_state.default_headers if name == b"date"]
        lines += [name + b": " + value for name, value in (*date, *response.raw_headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    def _hand_over(self) -> None:
        """Pass on the headers that websockets checks, the whole head for the application, and what follows it."""
        rest, empty = self.unparsed(), (b"sec-websocket-protocol", b"")
        checked = [header for header in self.headers if CHECKED.match(header[0]) and header != empty]
        self.ws_protocol_class = cast(Any, partial(StreamWebSocket, head=(self.url, self.headers)))
        self.url, self.scope["headers"] = b"/", [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), *checked]
        super().handle_websocket_upgrade()
        socket = cast(Any, self.transport.get_protocol())
        if socket.conn.handshake_exc is not None and not socket.handshake_initiated:
            socket.handshake_complete = True
            self.send_400_response(NO_HANDSHAKE)
            socket.conn.handshake_exc = None
        elif rest and not self.transport.is_closing():
            socket.data_received(rest)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._timer = ClientTimer(self.loop, HEAD_TIMEOUT_S, self._give_up)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


PATHS = ("/v1/listen", "/v2/listen")  # endpoints with early refusals: their own order of checks, and their form


class EarlyRefusal:
    """Refuses handshakes of Deepgram's paths while the replica is full or draining, or one address opens them too fast.

    Handshakes to be refused for another reason (key, origin, quota) are passed on to the endpoint.
    """

    def __init__(self, replica: Replica, access: AccessLog) -> None:
        self._guard = replica.guard
        self._clock = replica.clock
        self._access = access

    def __call__(self, scope: Scope) -> Response | None:
        """Return the refusal of a handshake with this scope, None if it is not refused here."""
        if scope["path"] not in PATHS:
            return None
        try:
            self._guard.refuse_if_unavailable()
            self._guard.refuse_if_too_fast(HTTPConnection(scope))
        except Refused as error:
            return self._refuse(scope, error)
        return None

    def _refuse(self, scope: Scope, error: Refused) -> Response | None:
        began_s, connection = self._clock(), HTTPConnection(scope)
        offered = connection.headers.get("sec-websocket-protocol", "")
        credentials = Credentials.read(
            connection.headers.get("authorization"), [item.strip() for item in offered.split(",")]
        )
        try:
            caller = self._guard.identify(connection, credentials)
        except Refused:
            return None
        if self._guard.limit(caller) is not None:  # a quota is checked before capacity
            return None
        request_id = take_request_id()
        response = render_refusal(self._guard.refuse(error), request_id)
        self._access.log_refusal(scope, response.status_code, self._clock() - began_s, request_id, error)
        return response


def tcp_port(app: ASGIApp, make_socket: MakeSocket, replica: Replica) -> MakeProtocols:
    """Return what makes the connections of a port without HTTP; `app` serves their streams."""
    logged = AccessLog(app, replica.clock, lines=replica.settings.access_log)
    return lambda state: partial(make_socket, logged, state.connections)


MAX_MESSAGE_BYTES = 2**20
SHUTDOWN_TIMEOUT_S = 5  # for connections that do not end after a close


def uvicorn_config(app: ASGIApp, replica: Replica) -> uvicorn.Config:
    """Return uvicorn's configuration for the app of a replica. Source: the settings page of uvicorn's documentation."""
    access = AccessLog(app, replica.clock, lines=replica.settings.access_log)
    return _config(access, replica, EarlyRefusal(replica, access))


def http_port(app: ASGIApp, replica: Replica) -> MakeProtocols:
    """Return what makes the HTTP protocols of a separate port that serves `app`."""

    def make(state: ServerState) -> Callable[[], asyncio.Protocol]:
        config = _config(AccessLog(app, replica.clock, lines=replica.settings.access_log), replica, None)
        config.load()
        return partial(cast(Any, config.http_protocol_class), config=config, server_state=state, app_state={})

    return make


def _config(app: ASGIApp, replica: Replica, refuse: Refuse | None) -> uvicorn.Config:
    settings = replica.settings
    hosts, port = listening_hosts(settings.host, settings.port)
    http = partial(HeadProtocol, refuse=refuse)
    return uvicorn.Config(
        app,
        host=cast(str, hosts),  # uvicorn only passes it to the event loop, which accepts several
        port=port,
        loop="uvloop",
        http=cast(type[HeadProtocol], http),  # a factory; uvicorn only calls it
        ws=StreamWebSocket,
        ws_per_message_deflate=False,  # PCM does not compress, and it would cost memory and time per connection
        ws_max_size=MAX_MESSAGE_BYTES,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )


BACKLOG = 2_048  # connections that the kernel queues; uvicorn's value
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.second_port")


class SecondPort:
    """Server of one protocol on a port of its own, on the running event loop, from `start` to `stop`."""

    def __init__(self, make_protocols: MakeProtocols, address: ListenAddress, *, scheme: str, **said: str) -> None:
        """Port 0 selects a free one; `scheme` and `said` are for the log line of the start."""
        self._host = address.host
        self._wanted_port = address.port
        self._scheme, self._said = scheme, said
        self._state = ServerState()
        self._make_protocol = make_protocols(self._state)
        self._server: asyncio.Server | None = None
        self.port = 0  # set by `start`

    async def start(self) -> None:
        """Start listening. Raises: OSError if the address is in use."""
        loop = asyncio.get_running_loop()
        hosts, port = listening_hosts(self._host, self._wanted_port)
        self._server = await loop.create_server(self._make_protocol, hosts, port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        url = open_address(self._host, self.port, self._scheme)
        _log.info("listening", url=f"{url}/", **interfaces(self._host), **self._said)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that was accepted elsewhere."""
        return self._make_protocol()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._state.connections)

    def stop(self) -> None:
        """Stop listening, and end the remaining connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
