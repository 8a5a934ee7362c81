"""A process that stood still, as in a paused machine, does not blame its clients: what they sent is read first."""

from __future__ import annotations

import json
import signal
import socket
import time

from websockets.sync.client import connect

from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.server_process import ServerProcess

LIMIT_S, STILL_S = 3.0, 4.5
PATHS = (
    "/v1/listen?encoding=linear16&sample_rate=16000",
    "/vosk?sample_rate=16000",
    "/v1/realtime?intent=transcription",
)
CONSTANTS = (
    "server.replica.QUIET_TIMEOUT_S",
    "server.http.uvicorn_server.HEAD_TIMEOUT_S",
    "server.protocols.uploads.BODY_TIMEOUT_S",
)


def test_a_process_that_stood_still_reads_before_it_judges() -> None:
    with ServerProcess(idle_timeout_s=LIMIT_S, constants=dict.fromkeys(CONSTANTS, LIMIT_S)) as server:
        address = "127.0.0.1", server.port
        streams = [connect(f"ws://127.0.0.1:{server.port}{path}", legacy=True) for path in PATHS]
        body = spell("hello ").tobytes() * 10
        query = "encoding=linear16&sample_rate=16000"
        head = f"POST /v1/listen?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(address) as half_head, socket.create_connection(address) as half_body:
            half_head.sendall(head[:20])
            half_body.sendall(head + body[:1_000])
            time.sleep(0.5)  # all are being waited for, long within the limit
            server.process.send_signal(signal.SIGSTOP)
            for stream in streams:
                stream.send(spell("hello ").tobytes() if stream is not streams[2] else '{"type":"nonsense"}')
            streams[0].send('{"type":"CloseStream"}')
            half_head.sendall(head[20:] + body)
            half_body.sendall(body[1_000:])
            time.sleep(STILL_S)
            server.process.send_signal(signal.SIGCONT)
            finals = [json.loads(message)["type"] for message in streams[0]]
            others = [stream.recv() for stream in streams[1:]]
            statuses = [each.recv(12) for each in (half_head, half_body)]
            for stream in streams:
                stream.close()
        assert finals == ["Results", "Metadata"]
        assert streams[0].close_code == 1000
        assert all(others)
        assert statuses == [b"HTTP/1.1 200"] * 2
