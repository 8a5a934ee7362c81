"""A server of archives on loopback, and what tests of `tutti model fetch` ask of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typer.testing import CliRunner

from server.cli import app

NAME = "sherpa-onnx-streaming-probe-2026-01-01"
FILE = f"{NAME}.tar.bz2"
runner = CliRunner()


class Site(ThreadingHTTPServer):
    """An HTTP server of files by path. `cuts`: the bytes after which the next answers end early."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cuts: list[int] = []
        self.requests = 0
        self.states_length = True
        self.busy: list[dict[str, str]] = []  # headers of the next answers, with status 503

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site: Site = self.server
        site.requests += 1
        name = self.path.strip("/").partition("?")[0]
        if site.busy:
            self.reply(503, b"", **site.busy.pop(0))
        elif name in site.moved:
            self.reply(302, b"", Location=site.moved[name])
        elif name not in site.files:
            self.reply(404, b"no such file")
        else:
            content = site.files[name]
            self.reply(200, content, site.cuts.pop(0) if site.cuts else len(content))
        self.close_connection = True

    def reply(self, status, content, cut=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.server.states_length:
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content[:cut])

    def log_message(self, *_):
        pass


def tar_of(folder, mode="w:bz2"):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=mode) as tar:
        tar.add(folder, arcname=NAME)
    return written.getvalue()


def fetch(*arguments):
    return runner.invoke(app, ["model", "fetch", *map(str, arguments)])


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def one_line(done):
    """Return the error without the line that names the download."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tutti: ")]
    return line
