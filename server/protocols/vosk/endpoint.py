"""vosk-server's WebSocket endpoint: `/vosk` on the main port, and optionally a separate port without keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog
from fastapi import FastAPI, WebSocket
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from server.access.guard import redaction_of
from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.configuration.addresses import interfaces, listening_hosts, open_address
from server.errors import NotAllowed, UnknownPath
from server.operations.logs import take_request_id
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import REDACT, ignored_header, in_plain_names, read_query, redaction, whole_number
from server.protocols.handshake import Admitted, render_refusal, serve
from server.protocols.vosk.adapter import VoskAdapter
from server.protocols.vosk.messages import RATES
from server.recognition.session_options import SessionOptions, finals_of
from server.replica import Replica

QUERY = frozenset({"key", "sample_rate", "model", "language", "grammar", "finals", REDACT})


class VoskEndpoint:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def live(self, socket: WebSocket) -> None:
        """Serve a stream on the main port; the key comes in `Authorization` or `?key=`."""
        await serve(socket, self._replica, self._admit_by_key)

    async def live_open(self, socket: WebSocket) -> None:
        """Serve a stream on the port without keys."""
        await serve(socket, self._replica, self._admit_open)

    async def refuse_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse plain HTTP on the port without keys."""
        refused = UnknownPath("this port accepts only WebSockets of vosk clients; for HTTP use the server's main port")
        await render_refusal(self._replica.guard.refuse(refused), take_request_id())(scope, receive, send)

    async def _admit_by_key(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: Refused."""
        await self._replica.guard.enter(socket, Credentials.of_header_or_query(socket))
        return await self._admitted(socket, request_id)

    async def _admit_open(self, socket: WebSocket, request_id: str) -> Admitted:
        """Admit without a key; web pages are refused, so that a visited page cannot use this port. Raises: Refused."""
        if "origin" in socket.headers:
            raise NotAllowed("web pages are not allowed on this port; use /vosk on the main port")
        await self._replica.guard.enter_without_key(socket)
        return await self._admitted(socket, request_id)

    async def _admitted(self, socket: WebSocket, request_id: str) -> Admitted:
        """Raises: BadParameter, ServerNotReady."""
        replica = self._replica
        lenient = replica.settings.lenient_features
        pairs = in_plain_names(socket.query_params.multi_items(), QUERY)
        query, ignored = read_query(pairs, QUERY, lenient=lenient)
        model = await replica.models.obtain(query.get("model"), query.get("language"))
        rate = model.config.sample_rate
        grammar, finals = query.get("grammar", ""), finals_of(query.get("finals", ""))
        model.check_grammar(grammar)
        model.check_finals(finals, {"grammar": grammar})
        redact = redaction(pairs) | redaction_of(socket)
        options = SessionOptions(rate, partials=True, grammar=grammar, finals=finals, redact=redact)
        session = model.session(options, replica.limits)
        stream = AdapterConnection(
            socket,
            session,
            VoskAdapter(rate, rate=_rate(query, replica.settings.vosk_sample_rate), lenient=lenient),
            replica.connection_context(replica.settings.quiet_timeout_s),
            protocol="vosk",
            encoding=Encoding.LINEAR16,
            request_id=request_id,
        )
        return Admitted(model, stream, session, headers=ignored_header(ignored))


def _rate(query: Mapping[str, str], default: int) -> int:
    """Return the sample rate that applies until the client's `config` sets another. Raises: BadParameter."""
    given = query.get("sample_rate")
    return default if given is None else whole_number("sample_rate", given, RATES)


_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.vosk")


MakeProtocol = Callable[[ASGIApp, ServerState], Callable[[], asyncio.Protocol]]
"""Builds the factory of the HTTP protocol that serves an app; implemented in `server.http.uvicorn_server`."""
BACKLOG = 2_048  # connections that the kernel queues; uvicorn's value


class VoskListener:
    """Server of the port without keys, on the running event loop, from `start` to `stop`; serves every path."""

    def __init__(self, endpoint: VoskEndpoint, host: str, port: int, make_protocol: MakeProtocol) -> None:
        """`port` 0 selects a free one."""
        self._app = FastAPI(openapi_url=None)
        self._app.add_api_websocket_route("/{path:path}", endpoint.live_open)
        self._app.router.default = endpoint.refuse_http
        self._host = host
        self._wanted_port = port
        self._state = ServerState()
        self._make_protocol = make_protocol(self._app, self._state)
        self._server: asyncio.Server | None = None
        self.port = 0  # set by `start`

    async def start(self) -> None:
        """Start listening. Raises: OSError if the address is in use."""
        loop = asyncio.get_running_loop()
        hosts, port = listening_hosts(self._host, self._wanted_port)
        self._server = await loop.create_server(self._make_protocol, hosts, port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        url = open_address(self._host, self.port, "ws")
        _log.info("listening", url=f"{url}/", **interfaces(self._host), protocol="vosk", keys="none needed")

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
