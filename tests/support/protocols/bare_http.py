"""Plain TCP connections to a server, read to the close or not at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

UPGRADE = (
    "Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
"""Headers of a WebSocket handshake."""
LISTEN = "POST /v1/listen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@contextmanager
def dialed(server: LiveServer) -> Iterator[socket.socket]:
    """Open a plain connection."""
    with socket.create_connection(server.host.split(":"), timeout=WAIT_S) as bare:
        yield bare


def rest(bare: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    parts = []
    try:
        while part := bare.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def uploading(
    server: LiveServer, body: bytes, *, head: str = LISTEN, length: int = 0, count: int = 1
) -> Iterator[list[socket.socket]]:
    """Begin uploads, and cut them at the end; of a `length` above that of the body the rest is not sent."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(dialed(server)) for _ in range(count)]
        for bare in sockets:
            bare.sendall(f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body)
        yield sockets
        for bare in sockets:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def client_that_does_not_read(server: LiveServer, **query: object) -> socket.socket:
    """Open a WebSocket client that reads only the handshake, with the smallest possible receive buffer."""
    url = urlsplit(server.url(**query))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(WAIT_S)
    client.connect((url.hostname, url.port))
    client.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\n{UPGRADE}\r\n".encode())
    assert b" 101 " in client.recv(2_000)
    return client
