"""Request heads: limits of time and size, and responses to malformed handshakes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import httpx
import pytest
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from server.http import uvicorn_server
from server.http.uvicorn_server import MAX_HEAD_BYTES, HeadProtocol
from tests.support.protocols.bare_http import UPGRADE, dialed, rest
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell
from tests.support.streams.websocket_bench import TcpTransport

Start = Callable[..., LiveServer]
VERSION = "Sec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /v1/listen HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: y"])
def test_a_head_that_does_not_arrive_in_time_closes_the_connection(
    live_server: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.2)
    server = live_server()
    with dialed(server) as bare:
        bare.sendall(sent)
        assert rest(bare) == b""


def test_a_head_that_arrives_in_pieces_gets_no_more_time(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow loris client sends a header now and then and would hold its socket forever."""
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.3)
    server = live_server()
    with dialed(server) as bare:
        bare.sendall(b"GET /healthz HTTP/1.1\r\n")
        bare.settimeout(0.02)
        assert dribbles_until_cut(bare, within_s=WAIT_S)


def dribbles_until_cut(bare: socket.socket, within_s: float) -> bool:
    """Send headers slowly; return whether the server closes the connection in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < within_s:
        try:
            bare.sendall(b"X-A: b\r\n")
            if not bare.recv(1):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_the_second_head_of_a_connection_has_the_same_time_limit(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.3)
    server = live_server()
    with dialed(server) as bare:
        bare.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok\n"):
            answer += bare.recv(1_000)
        bare.sendall(b"GET /healthz HT")
        assert rest(bare) == b""


def test_the_limit_of_a_head_does_not_apply_to_streams_and_bodies(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle stream and a slow body may take longer than the limit of a head."""
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.2)
    server = live_server()
    with server.listen() as client, dialed(server) as bare:
        bare.sendall(b"POST /v1/auth/grant HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in rest(bare)
        with dialed(server) as idle:
            assert rest(idle) == b""  # its time limit has passed, and so has that of the other stream's head
        client.send(spell("still here"))
        assert transcript(client.finish()) == "still here"


@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"X-" + b"a" * 8_000])
def test_a_head_without_end_is_refused(live_server: Start, piece: bytes) -> None:
    server = live_server()
    with dialed(server) as bare:
        bare.sendall(b"GET /healthz HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 64 * MAX_HEAD_BYTES:
                bare.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        answer = rest(bare)
        assert sent < 64 * MAX_HEAD_BYTES
        assert answer == b"" or b" 431 " in answer or b" 400 " in answer


@pytest.mark.parametrize(("line", "more"), [("POST /v1/listen", ""), ("GET /v1/listen", "Content-Length: 5\r\n")])
def test_a_malformed_handshake_is_answered(live_server: Start, line: str, more: str) -> None:
    """The websockets library does not answer some of them and would keep their sockets open."""
    server = live_server()
    with dialed(server) as bare:
        bare.sendall(f"{line} HTTP/1.1\r\n{UPGRADE}{more}\r\n".encode())
        answer = rest(bare)
    assert answer.startswith(b"HTTP/1.1 4")
    server.wait_idle()


@pytest.mark.parametrize("version", ["8", "14", "13, 8", "", None])
def test_a_handshake_of_another_version_is_told_the_right_one(live_server: Start, version: str | None) -> None:
    line = "" if version is None else f"Sec-WebSocket-Version: {version}\r\n"
    with dialed(live_server()) as bare:
        bare.sendall(f"GET /v1/listen HTTP/1.1\r\n{UPGRADE.replace(VERSION, line)}\r\n".encode())
        answer = rest(bare).lower()
    assert answer.startswith(b"http/1.1 426")
    assert b"\r\nsec-websocket-version: 13\r\n" in answer


FORMAT = "?encoding=linear16&sample_rate=16000"


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("/v1/listen", "websocket", "h2c, WebSocket"),
        ("/v1/listen", "websocket", "websocket\r\nUpgrade: h2c"),
        ("/v1/listen", "websocket", "\twebsocket\t"),
        ("/v1/listen", ": Upgrade", ": keep-alive, Upgrade"),
        ("/v1/listen", ": Upgrade", ": Upgrade\r\nConnection: keep-alive"),
        ("/v1/listen", VERSION, VERSION + "Sec-WebSocket-Protocol:\r\n"),
        ("/v1/listen", VERSION, VERSION + "X: y\r\n" * 200),
        ("/v1/listen", VERSION, VERSION + f"Cookie: {'y' * 9_000}\r\n"),  # longer than websockets reads
        ("/v1/listen", FORMAT, f"{FORMAT}&keyterm={'%C3%A9' * 2_000}"),
        ("/v1/listen/", "", ""),
        ("//v1//listen", "", ""),
        ("http://x/v1/listen", "", ""),
    ],
)
def test_handshakes_of_other_spellings_are_served_with_the_frames_that_came_with_them(
    live_server: Start, target: str, old: str, new: str
) -> None:
    frames = b"".join(
        Frame(opcode, data).serialize(mask=True)
        for opcode, data in ((Opcode.BINARY, spell("hello there").tobytes()), (Opcode.TEXT, b'{"type":"CloseStream"}'))
    )
    with dialed(live_server()) as bare:
        head = f"GET {target}{FORMAT} HTTP/1.1\r\n{UPGRADE}\r\n"
        bare.sendall(head.replace(old, new, 1).encode() + frames)
        answer = b""
        while b'"Metadata"' not in answer:
            answer += bare.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 101")
    assert b'"transcript":"hello there"' in answer


def test_a_body_does_not_count_towards_the_head(live_server: Start) -> None:
    server = live_server()
    answer = httpx.post(f"http://{server.host}/v1/listen", content=bytes(8 * MAX_HEAD_BYTES), timeout=WAIT_S)
    assert answer.status_code == 400
    assert answer.json()["err_code"] == "INVALID_AUDIO"


async def _nothing(scope: object, receive: object, send: object) -> None:
    """An application that answers nothing."""


def test_a_body_before_a_head_in_one_read_does_not_count_towards_it() -> None:
    """A refused upload is answered before its body ends, so the next request may follow in the same read."""
    loop, transport, config = asyncio.new_event_loop(), TcpTransport(), Config(_nothing, interface="asgi3")
    config.load()
    arguments = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": loop}
    protocol = HeadProtocol(refuse=None, **arguments)
    protocol.connection_made(transport)
    size = 3 * MAX_HEAD_BYTES
    protocol.data_received(f"POST /v1/listen HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    protocol.data_received(bytes(size) + b"GET /healthz HTTP/1.1\r\nHo")
    assert transport.sent == b""
    protocol.data_received(b"st: x\r\nX: " + b"y" * (MAX_HEAD_BYTES + 1))
    assert transport.sent.startswith(b"HTTP/1.1 431")
    (task,) = protocol.tasks
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    protocol.connection_lost(None)
    loop.close()
