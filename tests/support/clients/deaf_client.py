"""A WebSocket client on a plain socket that reads only the handshake."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer


def client_that_does_not_read(server: LiveServer, **query: object) -> socket.socket:
    """Open a WebSocket client that reads only the handshake, with the smallest possible receive buffer."""
    url = urlsplit(server.url(**query))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(WAIT_S)
    client.connect((url.hostname, url.port))
    client.sendall(
        f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert b" 101 " in client.recv(2_000)
    return client
