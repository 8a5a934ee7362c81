"""A program that receives callbacks, and answers as a test says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import msgspec

from tests.support.servers.fakes import WAIT_S

Json = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Json:
        """The body as an object."""
        return msgspec.json.decode(self.body, type=Json)


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer asks for a name of the address, which may take seconds


Answer = tuple[int, dict[str, str]]


class Receiver:
    """Requests in the order in which they came; `answer` chooses status and headers."""

    def __init__(self, answer: Callable[[Received], Answer]) -> None:
        self._requests: queue.SimpleQueue[Received] = queue.SimpleQueue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(self.command, self.path, headers, body)
                receiver._requests.put(received)
                status, more = answer(received)
                self.send_response(status)
                for name, value in {"content-length": "0", **more}.items():
                    self.send_header(name, value)
                self.end_headers()

            do_POST = do_PUT = answer  # noqa: N815 - of http.server

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/results"

    def next(self, timeout_s: float = WAIT_S) -> Received:
        """Return the next request."""
        return self._requests.get(timeout=timeout_s)

    @property
    def empty(self) -> bool:
        """Whether every request was taken."""
        return self._requests.empty()


def accept(_: Received) -> Answer:
    """Answer 200."""
    return 200, {}


@contextmanager
def receiver(answer: Callable[[Received], Answer] = accept) -> Iterator[Receiver]:
    """Run a receiver on loopback."""
    running = Receiver(answer)
    thread = threading.Thread(target=running.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        thread.join(timeout=WAIT_S)
        running.server.server_close()
