"""A server of archives on loopback, and what tests of `tutti model fetch` ask of it."""

from __future__ import annotations

import hashlib
import io
import re
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
        self.ranges: list[str | None] = []
        self.ignores_ranges = False
        self.ignores_if_range = False
        self.version_header = "ETag"  # or Last-Modified, or empty
        self.busy: list[dict[str, str]] = []  # headers of the next answers, with status 503

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site: Site = self.server
        asked = self.headers["Range"]
        site.ranges.append(asked)
        name = self.path.strip("/").partition("?")[0]
        if site.busy:
            self.reply(503, b"", **site.busy.pop(0))
        elif name in site.moved:
            self.reply(302, b"", Location=site.moved[name])
        elif name not in site.files:
            self.reply(404, b"no such file")
        else:
            self.send_file(site, site.files[name], asked)
        self.close_connection = True

    def send_file(self, site, content, asked):
        version = f'"{digest_of(content)}"'
        changed = not site.ignores_if_range and self.headers["If-Range"] not in {None, version}
        whole = asked is None or site.ignores_ranges or changed
        start = 0 if whole else int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
        if start >= len(content):
            self.reply(416, b"")
            return
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        if site.version_header:
            headers[site.version_header] = version
        cut = site.cuts.pop(0) if site.cuts else len(content)
        self.reply(206 if start else 200, content[start:], cut, **headers)

    def reply(self, status, content, cut=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
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
