"""Secrecy of keys, tokens and transcripts: log lines, metrics and refusals of a server are searched for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import jwt
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.support.audio.speech import samples
from tests.support.servers.fakes import WAIT_S
from tutti_asr_client.files.audio import read_pcm

KEY, SMALL, WRONG = "s3cret-k3y-of-ours", "s3cret-sm4ll", "wr0ng-k3y-of-theirs"
TOKEN_KEY = "t0ken-k3y-" * 4
KEYTERM = "zanzibar archipelago"
RAW = "encoding=linear16&sample_rate=16000"


@dataclass
class SearchedServer:
    """A running server, and its refusals as text."""

    host: str
    http: httpx.Client
    refusals: list[str]

    def post(self, path: str, headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
        """POST; an answer other than 200 is kept."""
        answer = self.http.post(path, headers=headers, **body)
        if answer.status_code != 200:
            self.refusals.append(f"{answer.status_code} {answer.headers} {answer.text}")
        return answer

    def listen(self, query: str = "", audio: bytes = b"", frames: tuple[str | bytes, ...] = (), **form: object) -> str:
        """Open a stream, send, end it; a refused handshake is kept. Returns: the transcript."""
        found = []
        try:
            with connect(
                f"ws://{self.host}/v1/listen?{RAW}{query}", compression=None, open_timeout=WAIT_S, **form
            ) as stream:
                for frame in (*(audio[at : at + 32_000] for at in range(0, len(audio), 32_000)), *frames):
                    stream.send(frame)
                stream.send('{"type":"CloseStream"}')
                for text in stream:
                    answer = json.loads(text)
                    if answer["type"] == "Results" and answer["is_final"]:
                        found.append(answer["channel"]["alternatives"][0]["transcript"])
        except InvalidStatus as refused:
            response = refused.response
            self.refusals.append(f"{response.status_code} {response.headers} {response.body!r}")
        except ConnectionClosed:
            pass
        return " ".join(found)

    def send_raw(self, sent: bytes) -> None:
        """Send bytes that are not a valid request, and keep the answer."""
        with socket.create_connection(self.host.split(":"), timeout=WAIT_S) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while part := connection.recv(65_536):
                    self.refusals.append(part.decode("latin-1"))


@contextlib.contextmanager
def served(tmp_path: Path, log_format: str) -> Iterator[SearchedServer]:
    """A server process that logs at level debug into `tmp_path/log`."""
    keys, log = tmp_path / "keys", tmp_path / "log"
    rows = [hashlib.sha256(KEY.encode()).hexdigest(), f"{hashlib.sha256(SMALL.encode()).hexdigest()} streams=1"]
    keys.write_text("\n".join(rows))
    (tmp_path / "token_keys").write_text(TOKEN_KEY)
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "0"]
    command += ["--api-keys-file", str(keys), "--log-level", "debug", "--log-format", log_format]
    variables = os.environ | {"TUTTI_TOKEN_KEYS_FILE": str(tmp_path / "token_keys")}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=variables) as process:
        try:
            host = ""
            deadline_s = time.monotonic() + 60
            while not host:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline_s, log.read_text()
                found = re.search(r"url\W+http://([0-9.:]+)", log.read_text())
                host = found[1] if found else ""
                time.sleep(0.05)  # another process: its log can only be polled
            with httpx.Client(base_url=f"http://{host}", timeout=WAIT_S) as http:
                yield SearchedServer(host, http, [])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)


def send_every_secret(server: SearchedServer, audio: bytes, file: bytes) -> tuple[str, list[str]]:
    """Send each secret everywhere that a client could put it. Returns: a transcript, and the tokens that were used."""
    token = server.post("/v1/auth/grant", {"Authorization": f"Token {KEY}"}).json()["access_token"]
    forged = jwt.encode({"aud": "tutti", "sub": "x", "iat": 0, "exp": 2**33}, "f" * 32, "HS256")
    old = jwt.encode({"aud": "tutti", "sub": "x", "iat": 0, "exp": 1}, TOKEN_KEY, "HS256")
    transcript = server.listen("", audio, additional_headers={"Authorization": f"Token {KEY}"})
    server.post("/v1/listen", {"Authorization": f"Bearer {token}", "Content-Type": "audio/flac"}, content=file)
    for secret in (KEY, WRONG, token, forged, old):
        for scheme in ("token", "bearer", "Basic"):
            headers = {"Authorization": f"{scheme} {secret}"}
            server.listen(f"&keyterm={KEYTERM}", additional_headers=headers)
            server.listen(additional_headers=headers, origin="https://evil.example")
            server.listen("&sample_rate=1", additional_headers=headers)
            server.post("/v1/listen", headers, content=b"no audio")
            server.post("/v1/auth/grant", headers, json={"ttl_seconds": secret})
            if scheme != "Basic":
                server.listen(subprotocols=[scheme, secret])
                server.listen("&encoding=g729", subprotocols=["x-deepgram-session-id", "1", scheme, secret])
        for name in ("token", "key", "access_token", "api_key"):
            server.listen(f"&{name}={secret}")
            server.post(f"/v1/listen?{name}={secret}")
            server.post(f"/{secret}?{name}={secret}")
        server.send_raw(f"GARBAGE {secret}\r\n{secret}\r\n\r\n".encode())
        server.send_raw(f"GET / HTTP/1.1\r\nAuthorization: {secret}\r\nAuthorization : {secret}\r\n\r\n".encode())
        server.send_raw(
            f"GET /v1/listen?key={secret} HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n".encode()
        )
        frames = (f'{{"type":"Configure","keyterms":["{KEYTERM}"]}}', f"{secret} no JSON", f'{{"type":"{secret}"}}')
        server.listen("", audio[:3_200], frames, additional_headers={"Authorization": f"Token {KEY}"})
    with connect(
        f"ws://{server.host}/v1/listen?{RAW}", additional_headers={"Authorization": f"Token {SMALL}"}, compression=None
    ):
        server.listen(additional_headers={"Authorization": f"Token {SMALL}"})
    _send_broken_text(server)
    return transcript, [token, forged, old]


def _send_broken_text(server: SearchedServer) -> None:
    """Send a text frame that is not UTF-8, which a WebSocket library may log with a traceback."""
    with connect(
        f"ws://{server.host}/v1/listen?{RAW}", additional_headers={"Authorization": f"Token {KEY}"}, compression=None
    ) as stream:
        payload = KEYTERM.encode() + b"\xff"
        with contextlib.suppress(ConnectionClosed):
            stream.socket.sendall(bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload)
            stream.recv(timeout=WAIT_S)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_keys_tokens_and_words_are_neither_logged_nor_sent_back(tmp_path: Path, log_format: str) -> None:
    sample = max(samples(), key=lambda utterance: len(utterance.text))
    audio = read_pcm(sample.audio, 16_000).tobytes()
    with served(tmp_path, log_format) as server:
        transcript, tokens = send_every_secret(server, audio, Path(sample.audio).read_bytes())
        metrics = server.http.get("/metrics").text
    log = (tmp_path / "log").read_text()
    statuses = {refusal.split()[0] for refusal in server.refusals}
    assert {"400", "401", "403", "429"} <= statuses, "every kind of refusal was received"
    assert "stream closed" in log
    long_words = {word for word in transcript.split() if len(word) > 6}
    assert long_words
    secrets = {KEY, SMALL, WRONG, TOKEN_KEY, *tokens, hashlib.sha256(KEY.encode()).hexdigest()}
    for hidden in secrets | long_words | {KEYTERM, KEYTERM.split()[1]}:
        assert hidden not in log
    for hidden in secrets:
        assert hidden not in metrics
        assert not [refusal for refusal in server.refusals if hidden in refusal]


FAILS = """
import logging, sys
import structlog
from server.operations.logs import configure_logs
from server.settings import Settings

lines = configure_logs(Settings(log_format=sys.argv[1]))

def serve(key, words):
    raise ArithmeticError("of a model")

for log in (structlog.get_logger("tutti"), logging.getLogger("uvicorn.error")):
    try:
        serve("s3cret-k3y", ["unspeakable"])
    except ArithmeticError:
        log.exception("it failed")
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_logged_traceback_holds_no_values_of_variables(log_format: str) -> None:
    """Some renderers print the variables of each frame: here, keys and transcripts."""
    shown = subprocess.run(
        [sys.executable, "-c", FAILS, log_format], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stderr.count("ArithmeticError") == 2
    for hidden in ("s3cret", "unspeakable"):
        assert hidden not in re.sub(r'serve\("s3cret-k3y", \["unspeakable"\]\)', "", shown.stderr)
