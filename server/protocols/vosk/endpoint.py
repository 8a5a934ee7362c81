"""vosk-server's WebSocket endpoint: `/vosk` on the main port, and optionally a separate port without keys."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, WebSocket
from starlette.types import Receive, Scope, Send

from server.access.keys import Credentials
from server.audio.formats import AudioForm, Encoding
from server.errors import NotAllowed, UnknownPath
from server.operations.logs import take_request_id
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import REDACT, ignored_header, in_plain_names, read_query, redaction, whole_number
from server.protocols.handshake import Admitted, render_refusal, serve
from server.protocols.vosk.adapter import DEFAULT_RATE, RATES, VoskAdapter
from server.recognition.request import Request
from server.recognition.session_options import SessionOptions, finals_of
from server.replica import Replica

QUERY = frozenset({"key", "sample_rate", "model", "language", "grammar", "finals", REDACT})


class VoskEndpoint:
    """The live endpoint of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def without_keys(self) -> FastAPI:
        """Return the app of the port without keys, which serves streams at every path."""
        app = FastAPI(openapi_url=None)
        app.add_api_websocket_route("/{path:path}", self.live_open)
        app.router.default = self.refuse_http
        return app

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
        rate, finals = model.config.sample_rate, finals_of(query.get("finals", ""))
        options = SessionOptions(
            partials=True, grammar=query.get("grammar", ""), finals=finals, redact=redaction(pairs)
        )
        request = await replica.accept(socket, model, Request(form=AudioForm(Encoding.LINEAR16, rate), options=options))
        session = model.session(request, replica.limits)
        stream = AdapterConnection(
            socket,
            session,
            VoskAdapter(rate, rate=_rate(query), lenient=lenient),
            replica.connection_context(keep_alive=False),
            protocol="vosk",
            encoding=request.form.encoding,
            request_id=request_id,
        )
        return Admitted(model, stream, session, headers=ignored_header(ignored))


def _rate(query: Mapping[str, str]) -> int:
    """Return the sample rate that applies until the client's `config` sets another. Raises: BadParameter."""
    given = query.get("sample_rate")
    return DEFAULT_RATE if given is None else whole_number("sample_rate", given, RATES)
