"""A `tutti serve` of our own: started on a free loopback port, watched until it is ready, stopped by its pid.

Knows the command line of the server and its `/readyz`, and nothing else of it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from loadtest.errors import ServerNotReady

READY_WITHIN_S = 120.0
"""Loading the model and its warm-up batches, on a busy machine."""

ASK_EVERY_S = 0.2
STOP_WITHIN_S = 20.0
SHOWN_LINES = 20

ALL_IN = ("--max-streams", "1024")
"""Nobody is refused: where latency is what is asked, a slow machine must show as latency. Later options overrule it."""

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def serve_command(port: int, options: Sequence[str]) -> list[str]:
    """The command that serves on this port."""
    return [sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1", "--port", str(port), *options]


@contextlib.contextmanager
def served(options: Sequence[str], log: Path | None = None) -> Iterator[str]:
    """The URL of `served_process`."""
    with served_process(options, log) as (url, _):
        yield url


@contextlib.contextmanager
def served_process(options: Sequence[str], log: Path | None = None) -> Iterator[tuple[str, int]]:
    """URL and process id of a server that is ready; it is stopped on leaving. `log` keeps what it prints.

    Raises:
        ServerNotReady: it ended, or took too long; with the end of what it printed.
    """
    port = free_port()
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            serve_command(port, options),
            cwd=Path(__file__).parent.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C ends the level first, then the server
        )
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}/readyz", output)
            yield f"ws://127.0.0.1:{port}", process.pid
        finally:
            _stop(process)


def free_port() -> int:
    """A loopback port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, output: IO[bytes]) -> None:
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not _is_ready(url):
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=ASK_EVERY_S)
            raise ServerNotReady(f"the server ended with {code}:\n{_tail(output)}")
        if time.monotonic() > deadline_s:
            raise ServerNotReady(f"the server was not ready within {READY_WITHIN_S:g} s:\n{_tail(output)}")


def _is_ready(url: str) -> bool:
    try:
        with _direct.open(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])
