"""Lifecycle of a live connection in any protocol (admit, accept, run, release), usage records, refusals as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.access.guard import CountedRefusal, Guard, caller_of
from server.coordination.term_building import OwnersTerms
from server.errors import Refused, UnknownPath
from server.models.service import ModelService
from server.operations.logs import take_request_id
from server.recognition.active_session import ActiveSession
from server.recognition.session import Session
from server.replica import Replica
from server.streaming.slow_messages import PatientConnection
from server.text.formatting import PLAIN, Style
from server.usage.meters import Reading, Subject


def subject_of(
    connection: HTTPConnection, model: ModelService, *, kind: str, protocol: str, request_id: str
) -> Subject:
    """Return whose an admitted stream or upload is; a port or a signature without a key has no key's name."""
    caller = caller_of(connection)
    name, key_id = ("", "") if caller is None else (caller.key.name, caller.key.id)
    return Subject(request_id, name, key_id, kind, protocol, model.name, language_of(model))


def language_of(model: ModelService) -> str:
    """Return the languages of a model, with commas."""
    return ",".join(model.languages)


def read_session(session: Session, style: Style) -> Reading:
    """Return the audio that a session has received, and the features asked of it by the names of our parameters."""
    options = session.options
    features = {
        "multichannel": options.multichannel,
        "interim_results": options.partials,
        "keyterm": any(terms.phrases or terms.keywords for terms in (session.keyterms.current, options.keyterms)),
        "grammar": bool(options.grammar),
        "accurate": options.finals == "accurate",
        "redact": bool(options.redact),
        "resumable": options.resumable,
        "punctuate": style.punctuate,
        "numerals": style.numerals,
    }
    return Reading(session.audio.by_channel_s, tuple(name for name, used in features.items() if used))


class RefusalBody(msgspec.Struct):
    """JSON body of a refusal, in the form of Deepgram's errors."""

    err_code: str
    err_msg: str
    request_id: str


def json_response(answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of an answer as JSON, or of JSON already encoded."""
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return Response(body, status, headers, media_type="application/json")


def refusal_response(body: object, refusal: CountedRefusal, headers: dict[str, str]) -> Response:
    """Return the response to a refused request, which says when to come again, in the form of any interface."""
    retry = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
    return json_response(body, refusal.status, headers | retry)


def render_refusal(refusal: CountedRefusal, request_id: str) -> Response:
    """Build the response to a refused request in Deepgram's form, also used by protocols that define none."""
    one_line = refusal.message.encode("ascii", "replace").decode().replace("\r", " ").replace("\n", " ")
    body = RefusalBody(refusal.err_code, refusal.message, request_id)
    return refusal_response(body, refusal, {"dg-error": one_line, "dg-request-id": request_id})


def refuse_unknown(guard: Guard, why: str, http: ASGIApp | None = None) -> ASGIApp:
    """Return an app that answers requests at unknown paths with 404 in Deepgram's form, and this text.

    uvicorn would answer WebSocket handshakes with an empty 403. `http` answers other requests instead, if it is given.
    """

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if http is not None and scope["type"] != "websocket":
            await http(scope, receive, send)
            return
        answer = render_refusal(guard.refuse(UnknownPath(why)), take_request_id())
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(answer)
        else:
            await answer(scope, receive, send)

    return refuse


@dataclass(frozen=True, slots=True)
class Admitted:
    """An accepted handshake: model, connection, and the subprotocol and headers of the response.

    `budget_s` is the latency budget that the client requested; None for the operator's. `style` is the formatting that
    the client chose.
    """

    model: ModelService
    connection: PatientConnection
    subprotocol: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    budget_s: float | None = None
    style: Style = PLAIN


def live_endpoint(
    replica: Replica,
    admit: Callable[[WebSocket, str], Awaitable[Admitted]],
    render: Callable[[CountedRefusal, str], Response] = render_refusal,
) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the endpoint of one protocol: a handshake is admitted, its connection accepted and served until it ends.

    `admit` takes the socket and the request id, and raises Refused; `render` builds the response to a refusal.
    """

    async def live(socket: WebSocket) -> None:
        received_s, request_id = replica.clock(), take_request_id()
        try:
            admitted = await admit(socket, request_id)
            session, budget_s = admitted.connection.session, admitted.budget_s
            recognition = await admitted.model.recognizer.open(session, admitted.connection, budget_s=budget_s)
        except Refused as error:
            await socket.send_denial_response(render(replica.guard.refuse(error), request_id))
        except WebSocketDisconnect:
            pass  # the client left during the admission
        else:
            await _serve(socket, replica, admitted, recognition, received_s=received_s, request_id=request_id)

    return live


async def _serve(
    socket: WebSocket,
    replica: Replica,
    admitted: Admitted,
    recognition: ActiveSession,
    *,
    received_s: float,
    request_id: str,
) -> None:
    """Accept a connection, serve it until it ends, and release its resources."""
    connection = admitted.connection
    replica.sessions.add(connection, connection.protocol, len(connection.session.channels))
    subject = subject_of(socket, admitted.model, kind="live", protocol=connection.protocol, request_id=request_id)
    connection.terms = OwnersTerms(replica.terms, replica.guard.owner(socket))
    usage = connection.usage = replica.usage.begin(subject, lambda: read_session(connection.session, admitted.style))
    try:
        headers = [(name.encode(), value.encode()) for name, value in admitted.headers.items()]
        await socket.accept(admitted.subprotocol, headers)
        replica.metrics.handshake.observe(replica.clock() - received_s)
        await connection.run(recognition)
    finally:
        recognition.close()
        usage.end(connection.end_reason.value)
        replica.sessions.remove(connection)
