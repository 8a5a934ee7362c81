"""HEAD on every path with GET, and errors for unknown paths and wrong methods in the format of the path's interface."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from structlog.testing import capture_logs

from server.http.api_docs import OPERATIONS
from server.http.bounded_protocol import plain_target
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
KEY = "s3cret-k3y"
PAGES = ("/", "/web/app.js", "/web/sample.flac", "/docs", "/docs/swagger-ui.css", "/openapi.json", "/asyncapi.yaml")
PATHS = (
    *PAGES,
    *(path for method, path in OPERATIONS if method == "get"),
    "/v2/models/other/ready",
    "/v1/models/other",
)
OF_ONE_ANSWER = {"date", "dg-request-id"}
REJECTED = 'tutti_handshakes_rejected_total{reason="bad_request"}'


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(allowed_origins=["https://page.example"]) as running:
        yield running


def headers_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER}


@pytest.mark.parametrize("path", PATHS)
def test_head_is_answered_as_get_without_a_body(server: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exposition = server.replica.metrics.exposition()
    monkeypatch.setattr(server.replica.metrics, "exposition", lambda: exposition)  # its numbers change
    path = path.format(name=server.replica.models.default.name)
    with server.http as http:
        got, head = http.get(path), http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert headers_of(head) == headers_of(got)
    if path != "/docs/swagger-ui.css":
        assert int(head.headers["content-length"]) == len(got.content) > 0


def test_a_connection_continues_after_head_and_the_log_has_the_method(server: LiveServer) -> None:
    connection = http.client.HTTPConnection(server.host, timeout=WAIT_S)
    with capture_logs() as log:
        for method in ("HEAD", "GET", "HEAD", "GET"):
            connection.request(method, "/readyz")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"ready\n" if method == "GET" else b"")
    connection.close()
    lines = [(line["method"], line["path"], line["status"]) for line in log if line["event"] == "request"]
    assert lines == [(method, "/readyz", 200) for method in ("HEAD", "GET", "HEAD", "GET")]


def test_head_follows_readiness_and_keys_as_get_does(live_server: Start) -> None:
    server = live_server(api_keys=[KEY], admin_keys=["master"])
    with server.http as http:
        assert http.head("/v1/models").status_code == 401
        assert http.head("/v1/models", headers={"Authorization": f"Token {KEY}"}).status_code == 200
        assert http.head("/admin/drain").status_code == 401
        server.replica.sessions.draining = True
        assert http.head("/readyz").status_code == 503
        assert http.head("/healthz").status_code == 200


def test_head_on_a_path_without_get_is_refused_and_counted_once(server: LiveServer) -> None:
    before = server.metric(REJECTED)
    with server.http as http:
        assert http.head("/nowhere").status_code == 404
        refused = http.head("/v1/listen")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")
    assert server.metric(REJECTED) == before + 2


def test_pages_of_allowed_origins_may_send_head(server: LiveServer) -> None:
    origin = {"Origin": "https://page.example"}
    asked = {**origin, "Access-Control-Request-Method": "HEAD", "Access-Control-Request-Headers": "authorization"}
    with server.http as http:
        assert http.options("/v1/models", headers=asked).status_code == 200
        assert http.head("/v1/models", headers=origin).headers["access-control-allow-origin"] == origin["Origin"]


def test_the_document_does_not_list_head(server: LiveServer) -> None:
    paths: dict[str, Any] = server.http.get("/openapi.json").json()["paths"]
    assert {method for methods in paths.values() for method in methods} == {"get", "post"}


def test_every_path_answers_wrong_methods_with_the_allowed_ones(server: LiveServer) -> None:
    with server.http as http:
        for path in {route.path for route in server.app.routes if isinstance(route, Route | WebSocketRoute)}:
            for method in ("TRACE", "PATCH", "PROPFIND"):
                answer = http.request(method, path)
                assert (answer.status_code, bool(answer.headers["allow"])) == (405, True), (method, path)


def test_slashes_too_many_are_no_other_path_unless_a_proxy_may_hide_it(server: LiveServer) -> None:
    """Base URLs and health checks that end in a slash; a proxy hides other paths as they are spelled."""
    with server.http as http:
        for path in ("/healthz", "/readyz", "/docs", "/v2/health/ready"):
            assert (http.get(f"{path}/").status_code, http.get(f"{path}/").text) == (200, http.get(path).text)
        assert [http.get(path).status_code for path in ("/metrics/", "/admin/models/")] == [307, 307]
        assert http.get("/v1//models/").json() == http.get("/v1/models").json()
        assert http.post("/v1/listen/?encoding=opus").json()["err_code"] == "INVALID_QUERY_PARAMETER"
        assert http.post("/v1//audio/transcriptions/").json()["error"]["type"] == "invalid_request_error"
    for hidden in (b"//metrics?x=//v1/", b"/v3//models", b"/x//v1/listen", b"*"):
        assert plain_target(hidden) == hidden
