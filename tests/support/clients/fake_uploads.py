"""An HTTP server that answers uploads with scripted replies, in threads."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


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
