"""HTTP clients that half-close, pipeline or do not read are answered if possible, within limits."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from server.http import bounded_protocol
from server.http.bounded_protocol import MAX_PIPELINED, BoundedHttpProtocol, PipelineFlow
from server.streaming import client_timer
from tests.support.protocols.bare_http import UPGRADE, dialed, rest
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import GatedSpellingModel, spell
from tests.support.streams.websocket_bench import TcpTransport

Start = Callable[..., LiveServer]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HANDSHAKE = f"GET /v1/listen?encoding=linear16&sample_rate=16000 HTTP/1.1\r\n{UPGRADE}\r\n".encode()


def upload(text: str, version: str = "1.1", *, chunked: bool = False) -> bytes:
    body = spell(text).tobytes()
    size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = f"POST /v1/listen?encoding=linear16&sample_rate=16000 HTTP/{version}\r\nHost: x\r\n{size}\r\n\r\n"
    return head.encode() + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)


def said(answer: bytes) -> str:
    final = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")  # of a server that probes a client that waits
    head, _, body = final.rpartition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer[:200]
    return json.loads(body)["results"]["channels"][0]["alternatives"][0]["transcript"]


@pytest.mark.parametrize(("version", "chunked"), [("1.0", False), ("1.1", False), ("1.1", True)])
def test_an_upload_is_answered_after_the_client_half_closed(live_server: Start, version: str, chunked: bool) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(upload("hello there", version, chunked=chunked))
        bare.shutdown(socket.SHUT_WR)
        answer = rest(bare)
        assert said(answer) == "hello there"
        assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("cut", [None, 10, -1, 200])
def test_a_request_that_asks_for_http_2_is_served_with_its_body(
    live_server: Start, chunked: bool, cut: int | None
) -> None:
    """Java's HttpClient asks so in every request; others follow on the connection. `cut`: where the reads divide."""
    asked = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\nHost: x\r\n"
    request = upload("hello there", chunked=chunked).replace(b"Host: x\r\n", asked)
    with dialed(live_server()) as bare:
        for part in (request[:cut], request[cut:] if cut else b"", request + HEALTH):
            bare.sendall(part)
        bare.shutdown(socket.SHUT_WR)
        answers = rest(bare).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.count(b'"transcript":"hello there"') == 2


@pytest.mark.parametrize(
    ("request_line", "reason"),
    [
        (
            "GET /v1/listen?keyterm=M\xfcller HTTP/1.1",
            "Invalid char in url query; percent-encode it.",
        ),  # curl sends it so
        ("POST /v1/listen HTTP/1.1\r\nContent-Length: -1", "Invalid character in Content-Length."),
        ("CONNECT elsewhere:80 HTTP/1.1", "Invalid HTTP request received."),
        (f"POST /v1/listen?keyterm={'x' * 2**16} HTTP/1.1", "The URL is longer than 65535 bytes."),
    ],
)
def test_a_request_that_cannot_be_parsed_is_answered_with_the_reason(
    live_server: Start, request_line: str, reason: str
) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(f"{request_line}\r\nHost: x\r\n\r\n".encode())
        answer = rest(bare)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(reason.encode())


def test_a_tunnel_is_refused_once_with_the_methods_of_its_path(live_server: Start) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(b"CONNECT /v1/listen HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01")
        assert rest(bare).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("count", [1, 2, 20])
def test_every_pipelined_request_is_answered_after_the_client_half_closed(live_server: Start, count: int) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(HEALTH * count + b"GET /healthz HT")
        bare.shutdown(socket.SHUT_WR)
        assert rest(bare).count(b"HTTP/1.1 200 OK") == count


def test_a_late_response_reaches_a_client_that_half_closed(live_server: Start) -> None:
    """Meanwhile the server probes the client with an interim response, which clients ignore."""
    model = GatedSpellingModel()
    server = live_server(model=model)
    with dialed(server) as bare:
        model.shut()
        bare.sendall(upload("late"))
        bare.shutdown(socket.SHUT_WR)
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert bare.recv(len(interim), socket.MSG_WAITALL) == interim
        model.open()
        assert said(rest(bare)) == "late"


def test_a_client_that_closed_both_directions_frees_its_upload(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model)
    model.shut()
    with dialed(server) as bare:
        bare.sendall(upload("abcdefgh " * 800))
        model.wait_inside()
    lost = "tutti_sessions_total"
    model.open()
    server.wait_idle()
    assert server.metric(f'{lost}{{outcome="client_abort",protocol="upload"}}') == 1


@pytest.mark.parametrize("sent", [b"Content-Length: 100\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"])
def test_a_body_that_is_cut_short_is_answered_with_400(live_server: Start, sent: bytes) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(b"POST /v1/listen?encoding=linear16&sample_rate=16000 HTTP/1.1\r\nHost: x\r\n" + sent)
        bare.shutdown(socket.SHUT_WR)
        answer = rest(bare)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"Content-Length" in answer


def test_a_client_without_a_request_is_closed_when_it_half_closes(live_server: Start) -> None:
    with dialed(live_server()) as bare:
        bare.shutdown(socket.SHUT_WR)
        assert rest(bare) == b""


def test_pipelined_requests_are_bounded(live_server: Start) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(HEALTH * (MAX_PIPELINED + 100))
        answer = rest(bare)
        assert b"HTTP/1.1 400" in answer
        assert str(MAX_PIPELINED).encode() in answer


def test_a_few_pipelined_requests_are_answered_in_their_order(live_server: Start) -> None:
    with dialed(live_server()) as bare:
        bare.sendall(HEALTH * 8 + HEALTH.replace(b"x\r\n", b"x\r\nConnection: close\r\n"))
        assert rest(bare).count(b"HTTP/1.1 200 OK") == 9


async def _nothing(scope: object, receive: object, send: object) -> None:
    """An ASGI application that is never called."""


class HttpBench:
    """The protocol on a transport without a socket, whose client reads nothing; its timeout expires immediately."""

    def __init__(self) -> None:
        self.loop, self.transport = asyncio.new_event_loop(), TcpTransport()
        config = Config(_nothing, interface="asgi3")
        config.load()
        arguments = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": self.loop}
        self.protocol = BoundedHttpProtocol(**arguments)
        self.protocol.connection_made(self.transport)

    def turn(self) -> None:
        """Run the event loop's due callbacks."""
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        self.protocol.connection_lost(None)
        self.loop.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpBench]:
    monkeypatch.setattr(client_timer, "READ_S", 0.0)
    monkeypatch.setattr(bounded_protocol, "WRITE_TIMEOUT_S", 0.0)
    made = HttpBench()
    yield made
    made.end()


def test_a_client_that_does_not_read_its_answers_is_dropped(bench: HttpBench) -> None:
    """Otherwise its responses would be held in memory without limit."""
    bench.transport.unsent = 70_000
    bench.protocol.pause_writing()
    bench.turn()
    assert bench.transport.aborted


def test_a_client_that_reads_slowly_is_kept(bench: HttpBench) -> None:
    bench.transport.unsent = 70_000
    bench.protocol.pause_writing()
    for unsent in (69_000, 68_000, 67_000):
        bench.transport.unsent = unsent
        bench.protocol._look_for_reader()
        assert not bench.transport.aborted
    bench.transport.unsent = 0
    bench.protocol.resume_writing()
    bench.turn()
    assert not bench.transport.aborted


@pytest.mark.parametrize("way", ["refused", "idle", "server shuts down"])
def test_a_closing_connection_whose_client_does_not_read_is_dropped(bench: HttpBench, way: str) -> None:
    bench.transport.unsent = 100
    match way:
        case "refused":
            bench.protocol.send_400_response("no")
        case "idle":
            bench.protocol._close_idle()
        case _:
            bench.protocol.shutdown()
    assert bench.transport.closing
    assert not bench.transport.aborted
    bench.turn()
    assert bench.transport.aborted


def test_a_handshake_after_an_unanswered_request_is_refused(live_server: Start) -> None:
    """Its response would be sent between others."""
    model = GatedSpellingModel()
    server = live_server(model=model)
    model.shut()
    with dialed(server) as bare:
        bare.sendall(upload("first"))
        model.wait_inside()
        bare.sendall(HANDSHAKE)
        answer = rest(bare)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"must wait" in answer
    model.open()
    server.wait_idle()


def test_a_disconnect_with_waiting_requests_ends_the_one_being_answered(live_server: Start, caplog) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model)
    model.shut()
    with dialed(server) as bare:
        bare.sendall(upload("abcdefgh " * 200) + HEALTH)
        model.wait_inside()
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    model.open()
    server.wait_idle()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_nothing_is_read_while_requests_wait() -> None:
    """The request being answered may resume reading; the data would be the body of a waiting request."""
    transport, waiting = TcpTransport(), [1]
    flow = PipelineFlow(transport, waiting)
    flow.pause_reading()
    flow.resume_reading()
    assert not transport.reading
    waiting.clear()
    flow.resume_reading()
    assert transport.reading
