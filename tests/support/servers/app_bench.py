"""The app of a server without sockets and engine: for requests that are answered before recognition."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from server.app import create_app
from server.errors import REFUSALS
from server.models.loading import LoadedModel
from server.settings import Settings
from tests.support.servers.recognizers.spelling import SpellingModel, spelling_decoder


class AppBench:
    """An app; each request has an event loop of its own."""

    def __init__(self, models: Any = None, **settings: Any) -> None:
        models = models or [LoadedModel.of(SpellingModel(), spelling_decoder())]
        application = create_app(Settings(**({"port": 0, "admin_local": True} | settings)), models)
        self.app, self.replica = application.asgi, application.replica

    @property
    def refused(self) -> float:
        """Number of requests refused so far."""
        samples = [sample for metric in self.replica.metrics.rejected.collect() for sample in metric.samples]
        return sum(sample.value for sample in samples if sample.name.endswith("_total"))

    def request(self, method: str, target: str, **options: Any) -> httpx.Response:
        """Return the answer to an HTTP request."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
                return await client.request(method, target, **options)

        return asyncio.run(ask())

    def handshake(self, target: str) -> httpx.Response:
        """Return the denial of a WebSocket handshake."""
        path, _, query = target.partition("?")
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [(b"host", b"h")], "subprotocols": [], "client": ("127.0.0.1", 5), "server": ("h", 80),
            "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))
        assert len(sent) == 2, "the handshake was not refused"
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=sent[1]["body"])


def form_of(answer: httpx.Response) -> str:
    """Return the interface whose form a refusal has: `deepgram`, `openai`, `inference` or `plain`."""
    if answer.headers["content-type"].startswith("text/plain"):
        return "plain"
    if "err_msg" in answer.json():
        return "deepgram"
    return "openai" if isinstance(answer.json()["error"], dict) else "inference"


def text_of(answer: httpx.Response) -> str:
    """Return the text of a refusal, whose other fields must be those of its form."""
    form = form_of(answer)
    if form == "plain":
        return answer.text.removesuffix("\n")
    body = answer.json()
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
    if form == "deepgram":
        assert set(body) == {"err_code", "err_msg", "request_id"}
        assert body["err_code"] in {one.err_code for one in REFUSALS.values() if one.status == answer.status_code}
        assert answer.headers["dg-error"] == body["err_msg"].encode("ascii", "replace").decode()
        assert answer.headers["dg-request-id"] == body["request_id"]
        return str(body["err_msg"])
    assert set(body) == {"error"}
    if form == "inference":
        return str(body["error"])
    assert set(body["error"]) == {"message", "type", "param", "code"}
    name, colon, _ = body["error"]["message"].partition(": ")
    assert body["error"]["param"] == (name if colon and name.replace("-", "_").isidentifier() else None)
    assert answer.headers["x-request-id"]
    return str(body["error"]["message"])
