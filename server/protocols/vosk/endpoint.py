"""vosk-server's WebSocket endpoint: `/vosk` beside the other protocols, and every path of a port of its own."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from fastapi import FastAPI, WebSocket
from uvicorn.server import ServerState

from server.access.guard import Guard
from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.errors import BadParameter, NotAllowed, Refused
from server.http.uvicorn_server import head_protocol
from server.protocols.adapter_connection import AdapterConnection, serve
from server.protocols.vosk.adapter import VoskAdapter
from server.protocols.vosk.messages import RATES
from server.recognition.session import SessionOptions
from server.replica import Replica, new_request_id


class VoskEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard) -> None:
        self._replica = replica
        self._door = door

    async def live(self, socket: WebSocket) -> None:
        """Recognise a stream; a key comes as `Authorization`, or as `?key=`: the protocol has no place for one."""
        authorization = socket.headers.get("authorization")
        credentials = Credentials.read(authorization, ())
        if credentials.key is None:
            credentials = Credentials(socket.query_params.get("key"), None)
        await self._serve(socket, credentials)

    async def live_open(self, socket: WebSocket) -> None:
        """Recognise a stream of whoever can reach the port that has been opened for this."""
        await self._serve(socket, None)

    async def _serve(self, socket: WebSocket, credentials: Credentials | None) -> None:
        replica, request_id = self._replica, new_request_id()
        received_s = replica.clock()
        try:
            if credentials is not None:
                self._door.enter(socket, credentials)
            else:
                _refuse_pages(socket)
                replica.sessions.refuse_if_draining()
                replica.recognizer.refuse_if_full()
            rate = replica.config.sample_rate
            session = replica.session(SessionOptions(rate, partials=True), replica.limits)
            stream = AdapterConnection(
                socket,
                session,
                VoskAdapter(rate, rate=_rate(socket, replica.settings.vosk_sample_rate)),
                replica.connection_context(replica.settings.quiet_timeout_s),
                protocol="vosk",
                encoding=Encoding.LINEAR16,
                request_id=request_id,
            )
            await serve(socket, stream, session, replica, received_s=received_s)
        except Refused as error:
            await socket.send_denial_response(self._door.refuse(error, request_id))


def _refuse_pages(socket: WebSocket) -> None:
    """No page that somebody happens to visit may use an open port of their network. Raises: NotAllowed."""
    if "origin" in socket.headers:
        raise NotAllowed("web pages are not let in here; use /vosk")


def _rate(socket: WebSocket, default: int) -> int:
    """The rate that holds until the client's `config` says another one. Raises: BadParameter."""
    given = socket.query_params.get("sample_rate")
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 9 and int(given) in RATES):
        raise BadParameter(f"sample_rate: must be a whole number from {RATES[0]} to {RATES[-1]}")
    return int(given)


_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.vosk")


class VoskListener:
    """Listens from `start` to `stop`, on the running loop."""

    def __init__(self, endpoint: VoskEndpoint, replica: Replica, door: Guard, port: int) -> None:
        """`port` 0 picks a free one."""
        self._app = FastAPI(openapi_url=None)
        self._app.state.replica, self._app.state.door = replica, door
        self._app.add_api_websocket_route("/{path:path}", endpoint.live_open)
        self._settings = replica.settings
        self._wanted = port
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self.port = 0  # known once it listens

    async def start(self) -> None:
        """Listen. Raises: OSError if the address is taken."""
        from server.http.uvicorn_server import uvicorn_config  # which imports the app that this is a part of

        config = uvicorn_config(self._app, self._settings)
        config.load()
        make = head_protocol(self._settings.handshake_timeout_s)
        protocol = partial(make, config=config, server_state=self._state, app_state={})
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(protocol, config.host, self._wanted, backlog=config.backlog)
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("listening", url=f"ws://{config.host}:{self.port}/", protocol="vosk", keys="none needed")

    def stop(self) -> None:
        """Listen no more, and end the connections that are left."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
