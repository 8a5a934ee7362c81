"""ASGI middleware around the whole app: a request id in each response, and a log line per HTTP response.

Queries are never logged, because they may contain keys. A client's own request id is logged if its characters are
safe. Accepted WebSockets are logged elsewhere, when they open and close.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.operations.logs import name_request, noted_refusal
from server.protocols.deepgram.parameters import TABLE
from server.protocols.features import FEATURES, OTHER_VERSION
from server.protocols.flux.messages import QUERY as FLUX
from server.protocols.openai.form import KNOWN as FORM

HEADER, CLIENT_HEADER = b"dg-request-id", b"x-request-id"
TRACE = (b"traceparent", b"tracestate")  # Source: W3C Trace Context
SANE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
PROBES, FLUX_PATH = ("/healthz", "/readyz", "/metrics", "/v2"), "/v2/listen"
MAX_PATH = 200  # characters of a path in a log line
GONE = 499  # nginx's status for a client that disconnected before the response
STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
PARAMETERS = frozenset(
    {*TABLE, *FEATURES, *OTHER_VERSION, *FLUX, *FORM, "content-type", "file", "intent", "track", "url"}
)
"""Names of parameters that may be logged: ours, not those of a client."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.access")


class AccessLog:
    """ASGI application that wraps another."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float], *, lines: bool) -> None:
        self._app = app
        self._clock = clock
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began_s, answer = self._clock(), _Answer(send, name_request(_taken_trace(scope)))
        names = {"request_id": answer.request_id, **_client_name(scope)}
        with structlog.contextvars.bound_contextvars(**names):
            try:
                await self._app(scope, receive, answer.send)
            finally:
                if self._lines and not answer.accepted:
                    self._write(scope, answer, self._clock() - began_s)

    def log_refusal(self, scope: Scope, status: int, seconds: float, request_id: str, error: Exception) -> None:
        """Log a handshake refused before it reached the app."""
        if self._lines:
            with structlog.contextvars.bound_contextvars(request_id=request_id, **_client_name(scope)):
                _line("WEBSOCKET", scope["path"], status, seconds, request_id, **_said_of(error))

    def _write(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        path = scope["path"] if "endpoint" in scope else "(unknown)"  # an unknown path may contain a key
        said = _said_of(noted_refusal())
        _line(scope.get("method", "WEBSOCKET"), path, answer.status, seconds, answer.request_id, **said)


def _line(method: str, path: str, status: int, seconds: float, request_id: str, **said: str) -> None:
    (_log.debug if path.startswith(PROBES) and path != FLUX_PATH else _log.info)(
        "request",
        method=method,
        path=path[:MAX_PATH].encode("unicode_escape").decode(),
        status=status,
        ms=round(seconds * 1e3, 1),
        request_id=request_id,
        **said,
    )


def _said_of(error: Exception | None) -> dict[str, str]:
    """Return the kind of a refusal and the parameter that its text begins with; nothing else that a client sent."""
    if error is None:
        return {}
    parameter = str(error).partition(":")[0]
    return {"error": type(error).__name__} | ({"parameter": parameter} if parameter in PARAMETERS else {})


class _Answer:
    """Sends the response of one request with the request id, and records its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = GONE
        self.accepted = False

    async def send(self, message: Message) -> None:
        """Send a message; the request id is added to the start of a response without one."""
        if message["type"] in STARTS:
            self.status = message.get("status", 101)
            self.accepted = message["type"] == "websocket.accept"
            headers = list(message.get("headers") or ())
            own = [value for name, value in headers if name.lower() == HEADER]
            if own:
                self.request_id = own[0].decode("latin-1")
            else:
                message = {**message, "headers": [*headers, (HEADER, self.request_id.encode())]}
        elif message["type"] == "websocket.close" and not self.accepted:
            self.status = 403  # ASGI's meaning of a close before the accept
        await self._send(message)


def _taken_trace(scope: Scope) -> dict[str, str]:
    """Return the caller's trace context, in headers or, as of browsers, in the query, where no endpoint sees it."""
    trace = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACE}
    query: bytes = scope["query_string"]
    if TRACE[0] not in query:
        return trace
    rest = []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name in TRACE:
            trace.setdefault(name.decode(), unquote_to_bytes(value).decode("latin-1"))
        else:
            rest.append(pair)
    scope["query_string"] = b"&".join(rest)
    return trace


def _client_name(scope: Scope) -> dict[str, str]:
    for name, value in scope["headers"]:
        if name == CLIENT_HEADER and SANE.fullmatch(value):
            return {"client_request_id": value.decode("ascii")}
    return {}
