"""uvicorn's configuration and HTTP protocol: limits of a request head, a 400 for malformed upgrades, and the early
refusal of handshakes while the replica is full or draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.access.guard import Guard
from server.access.keys import Credentials
from server.errors import Refused
from server.http.access_log import AccessLog
from server.replica import Replica, new_request_id
from server.settings import Settings
from server.streaming.websocket import StreamWebSocket

MAX_HEAD_BYTES = 64 * 1024  # beyond one read of the transport: the largest query of key terms is an eighth of it
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO_HANDSHAKE = "Invalid WebSocket handshake."

TurnAway = Callable[[Scope], Response | None]
"""Asked with the scope of a handshake. Returns: the answer to one that shall not be made."""


class HeadProtocol(HttpToolsProtocol):
    """Waits `timeout_s` for each head, and asks `turn_away`; `head_protocol` sets them: uvicorn makes the instances."""

    timeout_s = 10.0
    turn_away: TurnAway = staticmethod(lambda _: None)
    _timer: asyncio.TimerHandle | None = None  # runs while a head is awaited
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Await the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        self._cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Await the rest of this head."""
        super().on_message_begin()
        if self._timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._cancel()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read, and give up on a head that is too large."""
        super().data_received(data)
        if self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """Hand over to the WebSocket's protocol, which says nothing when the head is not to its liking."""
        path = self.url.partition(b"?")[0].decode("latin-1")  # whatever it is: nobody has looked at it yet
        refusal = self.turn_away({**self.scope, "type": "websocket", "path": path})
        if refusal is not None:
            self._answer(refusal)
        else:
            self._hand_over()
        # This object is done with. What it refers to in circles, heads and all, would wait for the collector.
        self.parser = None  # type: ignore[assignment]
        self.headers = []

    def _answer(self, response: Response) -> None:
        lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
        date = [(name, value) for name, value in self.server_state.default_headers if name == b"date"]
        lines += [name + b": " + value for name, value in (*date, *response.raw_headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    def _hand_over(self) -> None:
        super().handle_websocket_upgrade()
        socket = cast(Any, self.transport.get_protocol())
        if socket.conn.handshake_exc is not None and not socket.handshake_initiated:
            socket.handshake_complete = True
            self.send_400_response(NO_HANDSHAKE)
            socket.conn.handshake_exc = None

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(self.timeout_s, self._give_up)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def head_protocol(timeout_s: float, turn_away: TurnAway = HeadProtocol.turn_away) -> type[HeadProtocol]:
    """Return the class for `uvicorn.Config(http=…)`."""
    return type("TimedHeadProtocol", (HeadProtocol,), {"timeout_s": timeout_s, "turn_away": staticmethod(turn_away)})


PATH = "/v1/listen"  # where the many are


class EarlyRefusal:
    """Asked for each handshake as it arrives. Whoever has no right to an answer of 503 goes the whole way."""

    def __init__(self, replica: Replica, door: Guard, access: AccessLog) -> None:
        self._replica = replica
        self._door = door
        self._access = access

    def __call__(self, scope: Scope) -> Response | None:
        """Return the refusal of a handshake with this scope, None if it may go on."""
        if scope["path"] != PATH:
            return None
        try:
            self._replica.sessions.refuse_if_draining()
            self._replica.recognizer.refuse_if_full()
        except Refused as error:
            return self._refuse(scope, error)
        return None

    def _refuse(self, scope: Scope, error: Refused) -> Response | None:
        began_s, connection = self._replica.clock(), HTTPConnection(scope)
        offered = connection.headers.get("sec-websocket-protocol", "")
        credentials = Credentials.read(
            connection.headers.get("authorization"), [item.strip() for item in offered.split(",")]
        )
        try:
            caller = self._door.identify(connection, credentials)
        except Refused:
            return None
        if self._door.limit(caller) is not None:  # it may be told of its quota first
            return None
        request_id = new_request_id()
        response = self._door.refuse(error, request_id)
        self._access.turned_away(scope, response.status_code, self._replica.clock() - began_s, request_id)
        return response


MAX_MESSAGE_BYTES = 2**20
SHUTDOWN_TIMEOUT_S = 5  # for connections that not even a close ends


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration for the app. Source: the settings page of uvicorn's documentation."""
    replica: Replica = app.state.replica
    access = AccessLog(app, replica.clock, lines=settings.access_log)
    return uvicorn.Config(
        access,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=head_protocol(settings.handshake_timeout_s, EarlyRefusal(replica, app.state.door, access)),
        ws=StreamWebSocket,
        ws_per_message_deflate=False,  # PCM does not compress, and it costs memory and time for each connection
        ws_max_size=MAX_MESSAGE_BYTES,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
