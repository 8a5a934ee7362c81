"""A client that leaves while its handshake is being admitted: nothing is logged, and nothing stays taken."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any

import pytest

from server.protocols.deepgram.endpoints import QueryReader
from server.streaming.websocket import StreamWebSocket
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

HANDSHAKE = (
    "GET /v1/listen?encoding=linear16&sample_rate=16000 HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n"
    "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    "last", [b"", b"\x88\x82\0\0\0\0\x03\xe8", b"\x82\x03abc"]
)  # a close frame; one without a mask
def test_a_client_that_leaves_during_the_admission_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, last: bytes
) -> None:
    """With front ends an admission waits for the supervisor."""
    waiting, left, go_on = threading.Event(), threading.Event(), threading.Event()
    read, connection_lost = QueryReader.read, StreamWebSocket.connection_lost

    async def slow(*arguments: Any, **options: Any) -> Any:
        answer = await read(*arguments, **options)
        waiting.set()
        await asyncio.to_thread(go_on.wait, WAIT_S)
        return answer

    def lost(self: StreamWebSocket, exc: Exception | None) -> None:
        connection_lost(self, exc)
        left.set()

    monkeypatch.setattr(QueryReader, "read", slow)
    monkeypatch.setattr(StreamWebSocket, "connection_lost", lost)
    with LiveServer(max_streams=1) as server, caplog.at_level(logging.INFO):
        host, port = server.host.split(":")
        with socket.create_connection((host, int(port)), WAIT_S) as client:
            client.sendall(HANDSHAKE.format(host=server.host).encode() + last)
            assert waiting.wait(WAIT_S)
        assert left.wait(WAIT_S)
        go_on.set()
        with server.listen() as stream:  # the only slot is free
            stream.finish()
        server.wait_idle()
    assert not [record for record in caplog.records if record.exc_info or "Exception" in record.getMessage()]
