"""`GET /v1/realtime?intent=transcription` as a WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import WebSocket
from starlette.responses import Response

from server.access.guard import Guard
from server.access.keys import Credentials
from server.audio.formats import Encoding
from server.errors import BadParameter, Refused
from server.protocols.adapter_connection import AdapterConnection, serve
from server.protocols.openai.messages import error_body
from server.protocols.openai.realtime import RealtimeAdapter
from server.protocols.openai.settings import SILENCE_MS, SessionSettings
from server.recognition.session import Session, SessionOptions
from server.replica import Replica, new_request_id

SUBPROTOCOL, KEY_PREFIX = "realtime", "openai-insecure-api-key."  # how browsers send a key


class RealtimeEndpoint:
    """The endpoint of one replica."""

    def __init__(self, replica: Replica, door: Guard) -> None:
        self._replica = replica
        self._door = door

    async def live(self, socket: WebSocket) -> None:
        """Recognise a live stream, OpenAI's protocol."""
        replica, request_id = self._replica, new_request_id()
        received_s = replica.clock()
        credentials = realtime_credentials(socket.headers.get("authorization"), socket.scope["subprotocols"])
        try:
            self._door.enter(socket, credentials)
            stream, session = self._stream(socket, request_id)
            await serve(
                socket,
                stream,
                session,
                replica,
                received_s=received_s,
                subprotocol=credentials.subprotocol,
                headers={"x-request-id": request_id},
            )
        except Refused as error:
            await socket.send_denial_response(refusal(self._door, error, request_id))

    def _stream(self, socket: WebSocket, request_id: str) -> tuple[AdapterConnection, Session]:
        replica, query = self._replica, socket.query_params
        if query.get("intent") != "transcription":
            raise BadParameter("intent: this server transcribes; ask for intent=transcription")
        model = query.get("model", replica.models.name)
        replica.models.check(model)
        rate = replica.config.sample_rate
        options = SessionOptions(rate, partials=True, tell_stable=True, endpointing_ms=float(SILENCE_MS))
        adapter = RealtimeAdapter(
            request_id.replace("-", ""),
            SessionSettings(model),
            replica.models,
            model_rate=rate,
            min_silence_ms=replica.limits.min_endpoint_ms,
        )
        session = replica.session(options, replica.limits)
        stream = AdapterConnection(
            socket,
            session,
            adapter,
            replica.connection_context(replica.settings.quiet_timeout_s),
            protocol="openai",
            encoding=Encoding.LINEAR16,
            request_id=request_id,
        )
        return stream, session


def realtime_credentials(authorization: str | None, subprotocols: Sequence[str]) -> Credentials:
    """Take the key from the header, else from the subprotocols; only `realtime` is ever echoed."""
    given = Credentials.read(authorization, ())
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in subprotocols else None
    offered = [item.removeprefix(KEY_PREFIX) for item in subprotocols if item.startswith(KEY_PREFIX)]
    if given.key is None and offered:
        return Credentials(offered[0], subprotocol, bearer=True)
    return replace(given, subprotocol=subprotocol)


def refusal(door: Guard, error: Refused, request_id: str) -> Response:
    """Count a refusal, and tell it in OpenAI's form."""
    told = door.refuse(error, request_id)
    headers = {"x-request-id": request_id}
    if "retry-after" in told.headers:
        headers["Retry-After"] = told.headers["retry-after"]
    return Response(error_body(told.status_code, str(error)), told.status_code, headers, media_type="application/json")
