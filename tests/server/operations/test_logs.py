"""Logging: a bounded queue, one request id from end to end, no secrets."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.http.access_log import SANE
from server.operations.logs import MAX_LINES, LogLines, redacted
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Client, transcript
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.server_process import ServerProcess

UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
KEY = "a-key-that-must-not-be-logged"


@dataclass
class Log:
    """A `LogLines` over a pipe."""

    lines: LogLines
    reading: int
    counted: list[float] = field(default_factory=list)

    def read(self, size: int = 1 << 16) -> str:
        return os.read(self.reading, size).decode()


@pytest.fixture
def log() -> Iterator[Log]:
    reading, writing = os.pipe()
    made = Log(LogLines(writing, lambda count: f"{count} lost\n"), reading)
    made.lines.count_lost(made.counted.append)
    yield made
    os.close(reading)


def test_lines_are_written_whole_and_in_order(log: Log) -> None:
    for number in range(500):
        log.lines.write(f"line {number} ü\n")
    log.lines.drain(WAIT_S)
    assert log.read() == "".join(f"line {number} ü\n" for number in range(500))


def test_lines_beyond_the_bound_are_lost_and_reported_while_the_reader_is_stalled(log: Log) -> None:
    big = "x" * (1 << 16) + "\n"  # more than a pipe holds
    log.lines.write(big)
    assert select.select([log.reading], [], [], WAIT_S)[0], "the writer is writing"
    while sum(log.counted) == 0:
        log.lines.write("y\n")
    text = ""
    while text.count("y\n") < MAX_LINES:
        text += log.read()
    assert text == big + f"{sum(log.counted):.0f} lost\n" + MAX_LINES * "y\n"


def test_write_neither_blocks_nor_raises_when_the_reader_is_gone(log: Log) -> None:
    os.close(log.reading)
    done = threading.Event()

    def write() -> None:
        for _ in range(10_000):
            log.lines.write("no reader\n")
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(WAIT_S)
    log.lines.drain(0.0)  # ends the pause after an error
    log.reading = os.open("/dev/null", os.O_RDONLY)


@pytest.mark.parametrize(
    "line",
    [
        f"GET /v1/listen?encoding=linear16&token={KEY}&x=1 HTTP/1.1",
        f"GET /vosk?key={KEY}",
        f"Authorization: Token {KEY}",
        f'{{"headers": {{"authorization": "Bearer {KEY}"}}}}',
        f"[(b'authorization', b'Token {KEY}')]",
        f"Sec-WebSocket-Protocol: token, {KEY}",
    ],
)
def test_secrets_are_removed_from_lines_of_libraries(line: str) -> None:
    assert KEY not in redacted(None, "", line)
    assert "…" in redacted(None, "", line)


@pytest.mark.parametrize("text", ['{"event": "stream opened", "tokens": 3}', "monkey=1 turkey=2", "x&y z"])
def test_other_lines_stay_as_they_are(text: str) -> None:
    assert redacted(None, "", text) == text


def test_request_ids_of_clients_are_checked() -> None:
    assert SANE.fullmatch(b"trace-1/span:2=")
    for name in (b"", b"two words", b"line\nbreak", b"\x1b[31m", b"x" * 129, "é".encode()):
        assert not SANE.fullmatch(name)


def test_request_has_one_id_in_headers_frames_and_log_and_its_key_a_name(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} call-center")
    with ServerProcess(api_keys_file=str(keys), log_level="debug") as server:
        query = "encoding=linear16&sample_rate=16000"
        url = f"ws://127.0.0.1:{server.port}/v1/listen?{query}"
        headers = {"Authorization": f"Token {KEY}", "X-Request-Id": "call-7"}
        connecting = connect(url, additional_headers=headers, compression=None, proxy=None)
        with Client(connecting) as client:
            given = client.socket.response.headers["dg-request-id"]
            client.send(spell("secret words"))
            frames = client.finish()
        assert transcript(frames) == "secret words"
        assert frames[-1]["request_id"] == given
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{url}&token=wrong-{KEY}", compression=None, proxy=None).__enter__()
        refused_id = refused.value.response.headers["dg-request-id"]
        with server.http as http:
            probes = [http.get(path) for path in ("/readyz", "/absent%0aline?token=x", "/v1/status", "/metrics")]
            upload = http.post(f"/v1/listen?{query}", headers=headers, content=spell("more").tobytes())
        assert server.stop(signal.SIGTERM) == 0
        log = server.rest_of_log()
    stream = {line["event"]: line for line in log if line.get("request_id") == given}
    assert set(stream) >= {"stream opened", "stream closed"}
    assert {line.get("client_request_id") for line in stream.values()} == {"call-7"}
    assert stream["stream opened"]["key_name"] == stream["stream closed"]["key_name"] == "call-center"
    requests = {line["request_id"]: line for line in log if line["event"] == "request"}
    assert requests[refused_id]["status"] == 401
    assert requests[refused_id]["error"] == "NotAuthorized"
    assert "key_name" not in requests[refused_id]
    assert requests[upload.headers["dg-request-id"]]["status"] == 200
    assert upload.json()["metadata"]["request_id"] == upload.headers["dg-request-id"]
    for probe in probes:
        assert UUID.fullmatch(probe.headers["dg-request-id"])
        assert requests[probe.headers["dg-request-id"]]["status"] == probe.status_code
    levels = {requests[probe.headers["dg-request-id"]]["level"] for probe in (probes[0], probes[3])}
    assert levels == {"debug"}, "probes are sent every few seconds"
    everything = json.dumps(log, ensure_ascii=False)
    assert not [secret for secret in (KEY, "secret words", "token=") if secret in everything]
    assert requests[probes[1].headers["dg-request-id"]]["path"] == "(unknown)", "an unknown path may contain a key"


def test_console_format_has_the_same_events() -> None:
    with ServerProcess(log_format="console") as server:
        with server.http as http:
            given = http.get("/absent").headers["dg-request-id"]
        assert server.stop(signal.SIGTERM) == 0
        rows = [line["raw"] for line in server.rest_of_log()]
    assert any("listening" in row for row in rows)
    assert any("request" in row and f"request_id={given}" in row and "status=404" in row for row in rows)
