"""`transcribe`, with and without an event loop: results, retries, errors, interruptions, against scripted replies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import tutti_asr_client
from tutti_asr_client import AudioError, BadMessage, BadUrl, Refused, Retry, Transcription, Unreachable, Waiting, sync


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one upload; by default a transcript."""

    status: int = 200
    body: bytes = b""  # instead of a transcript or an error
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False  # the connection is closed without an answer
    never: bool = False  # the connection stays open without an answer


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One request as received."""

    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


def answer(text: str) -> bytes:
    """Return the body of an answer whose words are those of a text, half a second each."""
    words = [
        {"word": word, "start": n / 2, "end": (n + 1) / 2, "confidence": 0.9} for n, word in enumerate(text.split())
    ]
    alternative = {"transcript": text, "confidence": 0.9, "words": words}
    utterance = {"start": 0.0, "end": len(words) / 2, "channel": 0, "id": "u", **alternative}
    metadata: dict[str, Any] = {"request_id": "r", "duration": len(words) / 2, "channels": 1}
    metadata["warnings"] = [{"parameter": "body", "type": "truncated", "message": "the last frame is cut off"}]
    results = {"channels": [{"alternatives": [alternative]}], "utterances": [utterance]}
    return json.dumps({"metadata": metadata, "results": results}).encode()


class FakeUploads:
    """Serves on a free loopback port inside a `with` block of `running`; the last reply is repeated."""

    def __init__(self, *replies: Reply, text: str = "hello there") -> None:
        self.requests: list[Uploaded] = []
        self.received = threading.Event()  # a whole request
        self.client_gone = threading.Event()  # a client that got no answer has closed its connection
        self._replies = replies or (Reply(),)
        self._text = text
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeUploads]:
        """Serve."""
        uploads = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                uploads._answer(self)

            def log_message(self, *_: object) -> None:
                """Write no log."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"ws://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Uploaded(parts.path, parse_qs(parts.query), headers, body))
        self.received.set()
        if reply.never:
            handler.rfile.read(1)  # returns when the client closes
            self.client_gone.set()
        if reply.never or reply.cut:
            handler.close_connection = True
            return
        good = answer(self._text) if reply.status == 200 else b'{"err_code":"X","err_msg":"no room"}'
        content = reply.body or good
        handler.send_response(reply.status)
        for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


ROOT = Path(__file__).parents[2]
WITHIN_S = 20.0  # only a failing test waits that long
AT_ONCE = Retry(limit_s=5.0, first_wait_s=0.001, longest_wait_s=0.01)
FULL = Reply(503, headers={"Retry-After": "0.01"})


def transcribed(*arguments: Any, **options: Any) -> Transcription:
    return asyncio.run(asyncio.wait_for(tutti_asr_client.transcribe(*arguments, **options), WITHIN_S))


both = pytest.mark.parametrize("transcribe", [transcribed, sync.transcribe], ids=["async", "sync"])
Call = Callable[..., Transcription]


@both
def test_a_file_is_sent_unchanged_and_its_transcript_is_typed(transcribe: Call, tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(b"fLaC...")
    with FakeUploads().running() as server:
        done = transcribe(tmp_path / "a.flac", server.url, api_key="k", keyterm=["Ms. Ünal", "two"], utterances=True)
        assert transcribe(b"fLaC...", server.url + "/v1/listen?model=m") == done
    first, second = server.requests
    assert (done.text, done.duration, done.request_id) == ("hello there", 1.0, "r")
    assert [(word.word, word.start, word.end) for word in done.words] == [("hello", 0.0, 0.5), ("there", 0.5, 1.0)]
    assert [(said.transcript, said.channel) for said in done.utterances] == [("hello there", 0)]
    assert done.warnings[0].type == "truncated"
    assert (first.path, first.body) == ("/v1/listen", b"fLaC...")
    assert first.query == {"keyterm": ["Ms. Ünal", "two"], "utterances": ["true"]}
    assert first.headers["authorization"] == "Token k"
    assert (second.path, second.query, second.body) == ("/v1/listen", {"model": ["m"]}, b"fLaC...")
    assert "authorization" not in second.headers


@both
def test_a_full_server_and_lost_connections_are_retried_on_the_next_address(transcribe: Call) -> None:
    events: list[object] = []
    cut = Reply(cut=True)
    with FakeUploads(Reply(503), cut).running() as one, FakeUploads(cut, Reply()).running() as other:
        done = transcribe(b"audio", [one.url, other.url], retry=AT_ONCE, on_event=events.append)
    assert done.text == "hello there"
    assert [request.body for request in [*one.requests, *other.requests]] == [b"audio"] * 4
    assert all(isinstance(event, Waiting) for event in events)
    assert [str(event.error) for event in events if isinstance(event, Waiting)] == [
        "refused with HTTP 503: no room",
        "closed by the server with code 1006: connection lost",
        "closed by the server with code 1006: connection lost",
    ]


@both
def test_the_retry_budget_ends(transcribe: Call) -> None:
    with FakeUploads(FULL).running() as server, pytest.raises(Refused, match="HTTP 503: no room"):
        transcribe(b"audio", server.url, retry=Retry(limit_s=0.1, first_wait_s=0.01, longest_wait_s=0.02))
    assert len(server.requests) > 2


@both
def test_errors_say_what_is_wrong_and_are_not_retried(transcribe: Call, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"none\.wav: no such file"):
        transcribe(tmp_path / "none.wav")
    with pytest.raises(AudioError, match="is a directory"):
        transcribe(str(tmp_path))
    with pytest.raises(BadUrl, match="'ftp://h'"):
        transcribe(b"audio", "ftp://h")
    with pytest.raises(Unreachable, match=r"no server at http://127\.0\.0\.1:9/v1/listen: "):
        transcribe(b"audio", "ws://127.0.0.1:9", keyterm=["secret"])
    for reply, kind, text in (
        (Reply(400), Refused, "HTTP 400: no room"),
        (Reply(401, headers={"dg-error": "no such key"}), Refused, "HTTP 401: no such key"),
        (Reply(413, b"<html>"), Refused, "HTTP 413: Request Entity Too Large"),
        (Reply(body=b"<html>"), BadMessage, "upload is invalid"),
        (Reply(body=answer("a").replace(b'"alternatives": [', b'"none": [')), BadMessage, "upload is invalid"),
        (Reply(body=b'{"metadata":{"request_id":"r","duration":1},"results":{"channels":[]}}'), BadMessage, "without"),
    ):
        with FakeUploads(reply).running() as server, pytest.raises(kind, match=text):
            transcribe(b"audio", server.url, retry=AT_ONCE)
        assert len(server.requests) == 1


@both
def test_a_server_that_never_answers_is_given_up_and_left(transcribe: Call) -> None:
    with FakeUploads(Reply(never=True)).running() as server:
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
            transcribe(b"audio", server.url, retry=AT_ONCE, answer_timeout_s=0.2)
        assert server.client_gone.wait(WITHIN_S)
    assert len(server.requests) == 1


PROGRAMS = {
    "async": "import asyncio; from tutti_asr_client import transcribe; asyncio.run(transcribe(b'audio', URL))",
    "sync": "from tutti_asr_client.sync import transcribe; transcribe(b'audio', URL)",
}


@pytest.mark.parametrize("form", PROGRAMS)
def test_ctrl_c_ends_a_transcription_at_once(form: str) -> None:
    with FakeUploads(Reply(never=True)).running() as server:
        words = [sys.executable, "-c", PROGRAMS[form].replace("URL", repr(server.url))]
        with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert server.received.wait(WITHIN_S)
            interrupted_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WITHIN_S)
            took_s = time.monotonic() - interrupted_s
        assert server.client_gone.wait(WITHIN_S)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in errors
    assert took_s < 5.0


def test_both_forms_have_the_same_arguments() -> None:
    here, there = inspect.signature(sync.transcribe), inspect.signature(tutti_asr_client.transcribe)
    assert here.parameters == there.parameters


def test_importing_the_client_loads_no_http_library() -> None:
    code = "import sys, tutti_asr_client; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
