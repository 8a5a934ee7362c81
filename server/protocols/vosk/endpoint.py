"""vosk-server's WebSocket endpoint: `/vosk` on the main port, and optionally a separate port without keys."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, WebSocket

from server.access.keys import Credentials
from server.audio.formats import AudioForm, Encoding
from server.errors import NotAllowed
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import (
    REDACT,
    boolean,
    ignored_header,
    in_plain_names,
    read_query,
    redaction,
    whole_number,
)
from server.protocols.handshake import Admitted, live_endpoint, refuse_unknown
from server.protocols.vosk.adapter import DEFAULT_RATE, RATES, VoskAdapter
from server.recognition.request import SPEAKERS, Request
from server.recognition.segments.speaker_rules import SpeakerRules
from server.recognition.session_options import SessionOptions, finals_of
from server.replica import Replica

NO_VECTORS = "spk: not supported by this server; leave it out, or start the server with --speakers"
QUERY = frozenset({"key", "sample_rate", "model", "language", "grammar", "finals", "spk", REDACT})


def app_without_keys(replica: Replica) -> FastAPI:
    """Return the app of the port without keys, which serves streams at every path and refuses plain HTTP."""
    app = FastAPI(openapi_url=None)
    app.add_api_websocket_route("/{path:path}", live_endpoint(replica, partial(_admit_open, replica)))

    why = "this port accepts only WebSockets of vosk clients; for HTTP use the server's main port"
    app.router.default = refuse_unknown(replica.guard, why)
    return app


async def admit_by_key(replica: Replica, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a stream on the main port; the key comes in `Authorization` or `?key=`. Raises: Refused."""
    await replica.guard.enter(socket, Credentials.of_header_or_query(socket))
    return await _admitted(replica, socket, request_id)


async def _admit_open(replica: Replica, socket: WebSocket, request_id: str) -> Admitted:
    """Admit without a key; web pages are refused, so that a visited page cannot use this port. Raises: Refused."""
    if "origin" in socket.headers:
        raise NotAllowed("web pages are not allowed on this port; use /vosk on the main port")
    await replica.guard.enter_without_key(socket)
    return await _admitted(replica, socket, request_id)


async def _admitted(replica: Replica, socket: WebSocket, request_id: str) -> Admitted:
    """Raises: BadParameter, ServerNotReady."""
    lenient = replica.settings.lenient_features
    pairs = in_plain_names(socket.query_params.multi_items(), QUERY)
    query, ignored = read_query(pairs, QUERY, lenient=lenient)
    model = await replica.models.obtain(query.get("model"), query.get("language"))
    rate, finals = model.config.sample_rate, finals_of(query.get("finals", ""))
    options = SessionOptions(
        partials=True,
        language=query.get("language"),
        grammar=query.get("grammar", ""),
        finals=finals,
        redact=redaction(pairs),
        speakers=SpeakerRules(vectors=True) if boolean("spk", query.get("spk", "false")) else None,
    )
    request = Request(form=AudioForm(Encoding.LINEAR16, rate), options=options)
    request = await replica.accept(socket, model, request, lacking={} if model.speakers else {SPEAKERS: NO_VECTORS})
    session = model.session(request, replica.limits)
    first_rate = whole_number("sample_rate", query.get("sample_rate", str(DEFAULT_RATE)), RATES)
    stream = AdapterConnection(
        socket,
        session,
        VoskAdapter(rate, rate=first_rate, lenient=lenient),
        replica.connection_context(keep_alive=False),
        protocol="vosk",
        encoding=request.form.encoding,
        request_id=request_id,
    )
    return Admitted(model, stream, headers=ignored_header(ignored))
