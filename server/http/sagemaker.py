"""Amazon SageMaker's contract of a container: health, recordings and two-way streams at the paths that it calls.

Its router checks the callers, removes their headers and sends no key. Source: "Custom Inference Code with Hosting
Services" of AWS, and Deepgram's page on SageMaker: path and query of a recording are its custom attribute.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.guard import Guard
from server.errors import BadParameter
from server.operations.logs import take_request_id
from server.protocols.handshake import render_refusal

PING, INVOCATIONS, STREAM = "/ping", "/invocations", "/invocations-bidirectional-stream"
ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"
UPLOADS = ("/v1/listen", "/v1/audio/transcriptions")


class SageMaker:
    """ASGI middleware that serves these paths by the server's own."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope.get("path")
        if scope["type"] == "http" and path == PING:
            _move(scope, "/readyz")
        elif scope["type"] == "websocket" and path == STREAM:
            _move(scope, UPLOADS[0])
        elif scope["type"] == "http" and path == INVOCATIONS:
            path_sent, _, query = dict(scope["headers"]).get(ATTRIBUTES, b"").partition(b"?")
            target = "/" + path_sent.decode("latin-1").lstrip("/")
            if target not in UPLOADS:
                why = (
                    f"custom attributes: must begin with {' or '.join(name[1:] for name in UPLOADS)}, then ?parameters"
                )
                refusal = self._guard.refuse(BadParameter(why))
                await render_refusal(refusal, take_request_id())(scope, receive, send)
                return
            _move(scope, target, query)
        await self._app(scope, receive, send)


def _move(scope: Scope, path: str, query: bytes | None = None) -> None:
    """Give a request another path, and another query if one is given; the log line has the new path."""
    scope["path"], scope["raw_path"] = path, path.encode()
    if query is not None:
        scope["query_string"] = query
