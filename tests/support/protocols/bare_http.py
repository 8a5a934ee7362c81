"""Plain TCP connections to a server: sends bytes, and reads every byte until the server closes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer


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
