"""Endpoint of OpenAI's Realtime transcription: `GET /v1/realtime?intent=transcription` as a WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fastapi import WebSocket
from starlette.responses import Response

from server.access.guard import CountedRefusal
from server.access.keys import Credentials
from server.audio.formats import AudioForm, Encoding
from server.errors import BadParameter
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.features import REDACT, ignored_header, in_plain_names, read_query, redaction
from server.protocols.handshake import Admitted, language_of, refusal_response
from server.protocols.openai.messages import error_body
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import RATE, SILENCE_MS, SessionSettings
from server.recognition.active_session import ActiveSession
from server.recognition.request import Request
from server.recognition.session_options import SessionOptions
from server.replica import Replica
from server.streaming.connection import Connection
from server.text.redaction_kinds import Redaction

QUERY = frozenset({"intent", "model", "language", REDACT})
SUBPROTOCOL, KEY_PREFIX = "realtime", "openai-insecure-api-key."  # how browsers send a key


async def admit_session(replica: Replica, socket: WebSocket, request_id: str) -> Admitted:
    """Admit a Realtime session. Raises: Refused."""
    lenient = replica.settings.lenient_features
    credentials = realtime_credentials(socket.headers.get("authorization"), socket.scope["subprotocols"])
    await replica.guard.enter(socket, credentials)
    pairs = in_plain_names(socket.query_params.multi_items(), QUERY)
    query, ignored = read_query(pairs, QUERY, lenient=lenient)
    if query.get("intent") != "transcription":
        raise BadParameter("intent: this server only transcribes; set intent=transcription")
    name, language = query.get("model"), query.get("language")
    model = await replica.models.obtain(name, language)
    adapter = RealtimeAdapter(
        request_id.replace("-", ""),
        SessionSettings(model.name, name, language=language),
        replica.models.names,
        model_rate=model.config.sample_rate,
        min_silence_ms=replica.limits.min_endpoint_ms,
        lenient=lenient,
    )
    request = await replica.accept(socket, model, _request(redaction(pairs), language))
    session = model.session(request, replica.limits)
    stream = AdapterConnection(
        socket,
        session,
        adapter,
        replica.connection_context(keep_alive=False),
        protocol="openai",
        encoding=request.form.encoding,
        request_id=request_id,
        open_model=partial(_open_model, replica, request),
        limit=adapter.limit,
    )
    headers = {"x-request-id": request_id, **ignored_header(ignored)}
    return Admitted(model, stream, credentials.subprotocol, headers)


async def _open_model(
    replica: Replica, request: Request, stream: Connection, name: str, language: str | None
) -> ActiveSession:
    """Open a stream on another model for a connection. Raises: Refused; BatchingError if its thread hangs."""
    model = await replica.models.obtain(name, language)
    request = replace(request, options=replace(request.options, language=language))
    recognition = await model.recognizer.open(model.session(request, replica.limits), stream)
    if stream.usage is not None:
        stream.usage.use_model(model.name, language_of(model))
    return recognition


def _request(redact: frozenset[Redaction], language: str | None) -> Request:
    """Return what a stream asks for at first; its messages change the rest."""
    options = SessionOptions(
        partials=True,
        tell_stable=True,
        endpointing_ms=float(SILENCE_MS),
        speech_events=True,
        redact=redact,
        language=language,
        wait_in_numbers=False,
    )
    return Request(form=AudioForm(Encoding.LINEAR16, RATE), options=options)


def realtime_credentials(authorization: str | None, subprotocols: Sequence[str]) -> Credentials:
    """Read the key from the header, else from the subprotocols; only `realtime` is echoed as subprotocol."""
    credentials = Credentials.read(authorization, ())
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in subprotocols else None
    offered = [item.removeprefix(KEY_PREFIX) for item in subprotocols if item.startswith(KEY_PREFIX)]
    if credentials.key is None and offered:
        return Credentials(offered[0], subprotocol, bearer=True)
    return replace(credentials, subprotocol=subprotocol)


def render_error(refusal: CountedRefusal, request_id: str) -> Response:
    """Build the response to a refused request in OpenAI's form."""
    return refusal_response(error_body(refusal.status, refusal.message), refusal, {"x-request-id": request_id})
