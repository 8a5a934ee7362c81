"""Requests that no endpoint answers: HEAD on GET routes, unknown paths, wrong methods, unexpected errors.

Errors have the format of their path's interface: OpenAI, Open Inference Protocol, plain text under /admin, and
Deepgram everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPMethod

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.guard import CountedRefusal, Guard
from server.errors import Refused, UnexpectedFailure, UnknownPath, WrongMethod
from server.operations.logs import take_request_id
from server.protocols.handshake import json_response, render_refusal
from server.protocols.openai.endpoint import render_error

OPENAI = re.compile(
    "(?:/v1)?/(?:audio|realtime|chat|completions|responses|embeddings|moderations|images|files|batches)(?:/|$)"
)
"""Paths of OpenAI's interface, also without `/v1`, as sent by clients whose base URL lacks it."""
INFERENCE = re.compile("/v2(?!/listen)(?:/|$)")
ADMIN = re.compile("/admin(?:/|$)")


class HeadAsGet:
    """ASGI middleware that handles HEAD as GET. The HTTP server sends only the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != HTTPMethod.HEAD:
            await self._app(scope, receive, send)
            return
        as_get = {**scope, "method": "GET"}  # the HTTP server and the access log still see the original method
        try:
            await self._app(as_get, receive, send)
        finally:
            if "endpoint" in as_get:
                scope["endpoint"] = as_get["endpoint"]  # shows the access log that the path is known


def answer_unmatched(app: FastAPI, guard: Guard, sockets: Sequence[str]) -> None:
    """Answer unknown paths, wrong methods and unexpected errors; `sockets` are the paths of WebSockets."""

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "the handler is registered only for HTTPException"
        path, allowed = request.scope["path"], ""
        is_socket = path in sockets
        if error.status_code == WRONG_METHOD or (is_socket and request.method != HTTPMethod.GET):
            methods = ", ".join(_allowed(app, request.scope))
            allowed = methods or HTTPMethod.GET.value
            refused = _wrong_method(request.method, methods, is_socket=is_socket)
        elif error.status_code == UNKNOWN:
            refused = _unknown(path, is_socket=is_socket)
        else:
            return await http_exception_handler(request, error)
        response = _render(path, guard.refuse(refused))
        if allowed:
            response.headers["Allow"] = allowed
        return response

    async def fail(request: Request, _: Exception) -> Response:
        return _render(request.scope["path"], guard.refuse(UnexpectedFailure()))  # the HTTP server logs the error

    app.add_exception_handler(HTTPException, answer)
    app.add_exception_handler(Exception, fail)


UNKNOWN, WRONG_METHOD = 404, 405
HANDSHAKE = "a WebSocket handshake: GET with Upgrade: websocket and Connection: Upgrade"
OTHER_AUDIO = {"translations": "does not translate", "speech": "does not speak"}  # paths of OpenAI's under /v1/audio
LONGEST_METHOD = 16  # characters of a method in an error
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


def _unknown(path: str, *, is_socket: bool) -> Refused:
    """Return the refusal; it omits the path, which may contain a key by mistake."""
    if is_socket:
        return UnknownPath(f"{path} accepts only WebSockets; send {HANDSHAKE}")
    if OPENAI.match(path) and not path.startswith("/v1"):
        return UnknownPath("no endpoint at this path; add /v1 to the base URL, as in /v1/audio/transcriptions")
    lacking = OTHER_AUDIO.get(path.removeprefix("/v1/audio/"))
    if lacking is not None:
        return UnknownPath(f"this server {lacking}; it has /v1/audio/transcriptions")
    return UnknownPath("no endpoint at this path; /docs lists them")


def _wrong_method(method: str, allowed: str, *, is_socket: bool) -> Refused:
    valid = [*([allowed] if allowed else []), *([HANDSHAKE] if is_socket else [])]
    return WrongMethod(f"{method[:LONGEST_METHOD]} is not allowed at this path; send {', or '.join(valid)}")


def _allowed(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods with a route for the path of a request."""
    methods = []
    for method in METHODS:
        scope_of_method = {**scope, "method": method}
        if any(route.matches(scope_of_method)[0] is Match.FULL for route in app.router.routes):
            methods += [method, "HEAD"] if method == HTTPMethod.GET else [method]
    return methods


def _render(path: str, refusal: CountedRefusal) -> Response:
    request_id = take_request_id()
    if OPENAI.match(path):
        return render_error(refusal, request_id)
    if INFERENCE.match(path):
        return json_response({"error": refusal.message}, refusal.status)
    if ADMIN.match(path):
        return Response(f"{refusal.message}\n", refusal.status, media_type="text/plain")
    return render_refusal(refusal, request_id)
