"""Refusals of handshakes before ASGI, by a full or draining replica: the same responses as the endpoint's."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import urlencode

import pytest
import structlog
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.http.uvicorn_server import EarlyRefusal
from server.streaming.websocket import StreamWebSocket
from tests.support.protocols.bare_http import UPGRADE, dialed
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
TARGETS = (
    *(b"*", b"?", b"//", b"/\xff\xfe", b"/%zz", b":"),
    *(b"http://[", b"http://h/v1/listen", b"/v1/%6Cisten", b"/v1/listen?\xff"),
)
ODD_HEADERS = (
    *(b"Authorization: \xff\xfe", b"Authorization: Token \xc3"),
    *(b"Origin: \xff://[", b"Sec-WebSocket-Protocol: ,,"),
)
RAW = {"encoding": "linear16", "sample_rate": "16000"}
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def refused(server: LiveServer, headers: dict[str, str] | None = None, **query: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers by lower-case name and body of a refusal, without ids and date."""
    with pytest.raises(InvalidStatus) as found:
        server.listen(headers, **query)
    return shown(found.value)


def shown(error: InvalidStatus) -> tuple[int, dict[str, str], str]:
    response = error.response
    named = {name.lower(): IDS.sub("…", value) for name, value in response.headers.raw_items()}
    assert named.pop("date")
    return response.status_code, named, IDS.sub("…", (response.body or b"").decode())


@pytest.fixture
def handshakes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the handshakes that reach the WebSocket protocol."""
    made: list[object] = []
    begin = StreamWebSocket.connection_made

    def connection_made(self: StreamWebSocket, transport: object) -> None:
        made.append(self)
        begin(self, transport)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamWebSocket, "connection_made", connection_made)
    return made


def test_the_response_equals_that_of_the_endpoint(
    live_server: Start, handshakes: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live_server(max_streams=1)
    with server.listen():
        soon = refused(server)
        assert len(handshakes) == 1
        assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 1
        monkeypatch.setattr(EarlyRefusal, "__call__", lambda *_: None)
        assert refused(server) == soon
        assert len(handshakes) == 2
        assert server.metric('tutti_handshakes_rejected_total{reason="capacity"}') == 2
        status, headers, body = soon
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert '"err_code":"SERVICE_UNAVAILABLE"' in body


def test_key_origin_and_quota_are_checked_before_capacity(live_server: Start) -> None:
    server = live_server(max_streams=1, api_keys=["k"], max_streams_per_key=1)
    with server.listen({"Authorization": "Token k"}):
        assert refused(server)[0] == 401
        assert refused(server, {"Authorization": "Token other"})[0] == 401
        assert refused(server, {"Authorization": "Token k"})[0] == 429
        assert refused(server, {"Authorization": "Token k", "Origin": "https://elsewhere.example"})[0] == 403


def test_a_key_in_the_subprotocols_is_read(live_server: Start, handshakes: list[object]) -> None:
    server = live_server(max_streams=1, api_keys=["k"])
    with server.listen({"Authorization": "Token k"}):
        assert refused(server, {"Sec-WebSocket-Protocol": "token, k"})[0] == 503
        assert refused(server, {"Sec-WebSocket-Protocol": "token, other"})[0] == 401
    assert len(handshakes) == 2  # the admitted one, and the one with a wrong key


def test_a_draining_replica_refuses_early(live_server: Start, handshakes: list[object]) -> None:
    server = live_server(drain_timeout_s=60)
    with server.listen() as client:
        server.server.handle_exit(signal.SIGTERM, None)
        status, headers, _ = refused(server)
        assert (status, headers["dg-error"]) == (503, "the server is restarting")
        assert len(handshakes) == 1
        client.finish()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_malformed_request_targets_are_answered_and_logged_without_error(
    live_server: Start, caplog: pytest.LogCaptureFixture, target: bytes, *, full: bool
) -> None:
    server = live_server(max_streams=1)
    head = b"GET %b HTTP/1.1\r\n%b\r\n" % (target, UPGRADE.encode())
    with server.listen() if full else nullcontext(), dialed(server) as connection:
        connection.sendall(head)
        answer = connection.recv(4_096)
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert server.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("header", ODD_HEADERS)
def test_malformed_headers_are_answered_without_error(
    live_server: Start, caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    server = live_server(max_streams=1, api_keys=["k"])
    with server.listen({"Authorization": "Token k"}), dialed(server) as connection:
        connection.sendall(b"GET /v1/listen HTTP/1.1\r\n%b%b\r\n\r\n" % (UPGRADE.encode(), header))
        assert connection.recv(4_096)[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 401"}
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def test_an_early_refusal_is_logged_with_the_request_id_of_its_answer(live_server: Start) -> None:
    server = live_server(max_streams=1)
    with server.listen(), capture_logs() as lines:
        structlog.contextvars.clear_contextvars()
        with pytest.raises(InvalidStatus) as found:
            server.listen({"x-request-id": "mine"})
    [line] = [line for line in lines if line["event"] == "request"]
    assert line["request_id"] == found.value.response.headers["dg-request-id"]
    assert (line["path"], line["status"], line["method"]) == ("/v1/listen", 503, "WEBSOCKET")
    assert line["error"] == "ServerFull"


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/v1/listen", {"profanity_filter": "true"}, {"error": "BadParameter", "parameter": "profanity_filter"}),
        ("/v1/listen", {"language": "multi"}, {"error": "BadParameter", "parameter": "language"}),
        ("/v1/listen", {"encoding": "linear16"}, {"error": "BadParameter", "parameter": "sample_rate"}),
        ("/v2/listen", {"secret_name": "x"}, {"error": "BadParameter"}),
        ("/v2/listen", {**RAW, "model": "s3cret"}, {"error": "BadParameter", "parameter": "model"}),
        ("/v1/s3cret", {}, {"error": "UnknownPath"}),
    ],
)
def test_the_log_line_of_a_refusal_has_its_kind_and_parameter_and_no_text_of_the_client(
    live_server: Start, path: str, query: dict[str, str], said: dict[str, str]
) -> None:
    server = live_server()
    with capture_logs() as lines, server.http as http:
        with pytest.raises(InvalidStatus):
            connect(f"ws://{server.host}{path}?{urlencode(query)}", compression=None, proxy=None).__enter__()
        if path == "/v1/listen":
            assert http.post(path, params=query, content=b"x").status_code == 400
    found = [line for line in lines if line["event"] == "request"]
    assert len(found) == 1 + (path == "/v1/listen")
    assert {name: found[0][name] for name in ("error", "parameter") if name in found[0]} == said
    assert {line["log_level"] for line in found} == {"info"}
    assert not any("secret" in str(value) or "s3cret" in str(value) for line in found for value in line.values())
