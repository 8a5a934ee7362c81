"""Server processes for measurements: started on a free loopback port, polled until ready, stopped by process ID.

Uses `tutti serve` and its `/readyz`. Replicas, proxies and peers use the same functions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from loadtest.errors import ServerNotReady

ROOT = Path(__file__).parents[1]
READY_WITHIN_S = 120.0
"""For loading and warming up the model on a busy machine."""

ASK_EVERY_S = 0.1
ANSWER_WITHIN_S = 10.0
STOP_WITHIN_S = 20.0
SHOWN_LINES = 20

ALL_IN = ("--max-streams", "1024")
"""Option to refuse no stream, so that a slow machine shows in the latency. Later options override it."""

ONE_PROCESS = ("--front-ends", "0")
"""Option for programs that look into the server's process: on four cores and more a server has several by default."""

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def serve_command(port: int, options: Sequence[str]) -> list[str]:
    """Return the command to serve on this port."""
    return [sys.executable, "-m", "server.cli", "serve", "--host", "127.0.0.1", "--port", str(port), *options]


@contextlib.contextmanager
def served(options: Sequence[str], log: Path | None = None) -> Iterator[str]:
    """Yield the URL of `served_process`."""
    with served_process(options, log) as (url, _):
        yield url


@contextlib.contextmanager
def served_process(options: Sequence[str], log: Path | None = None) -> Iterator[tuple[str, int]]:
    """Yield URL and process ID of a ready `tutti serve`, as `running`."""
    port = free_port()
    with running(serve_command(port, options), port, log) as process:
        yield f"ws://127.0.0.1:{port}", process.pid


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server and yield its process once it is ready on this port; it is stopped on exit.

    Its output goes to `log`, if given.

    Raises:
        ServerNotReady: it exited, or took too long; with the end of its output.
    """
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        process = start(command, output)
        try:
            wait_until_ready(process, lambda: is_ready(port), output)
            yield process
        finally:
            stop(process)


def server_at(url: str | None, options: Sequence[str]) -> contextlib.AbstractContextManager[str]:
    """Yield the URL of a running server, or of a new one with these options."""
    return contextlib.nullcontext(url) if url is not None else served(options)


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(
    command: Sequence[str], output: IO[bytes] | None, env: Mapping[str, str] | None = None, *, tree: Path = ROOT
) -> subprocess.Popen[bytes]:
    """Start a process in a new session, so that Ctrl-C does not reach it and `stop` can end all its workers."""
    return subprocess.Popen(  # noqa: S603 - our own command
        command,
        cwd=tree,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
    )


def wait_until_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    output: IO[bytes],
    *,
    name: str = "the server",
    within_s: float = READY_WITHIN_S,
) -> None:
    """Wait until `ready()` is true. Raises: ServerNotReady, with the end of the output."""
    deadline_s = time.monotonic() + within_s
    while not ready():
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=ASK_EVERY_S)
            raise ServerNotReady(f"{name} ended with {code}:\n{_tail(output)}")
        if time.monotonic() > deadline_s:
            raise ServerNotReady(f"{name} was not ready within {within_s:g} s:\n{_tail(output)}")


def is_ready(port: int) -> bool:
    """Whether the server on this port answers `/readyz` with 200."""
    try:
        get(port, "/readyz")
    except OSError:
        return False
    return True


def get(port: int, path: str) -> bytes:
    """Return the body of a page of the server on this port. Raises: OSError if unreachable or for an error status."""
    return get_page(f"http://127.0.0.1:{port}{path}", ANSWER_WITHIN_S)


def get_page(url: str | urllib.request.Request, within_s: float) -> bytes:
    """Return the body of the answer, never through a proxy. Raises: OSError as `get`."""
    with _direct.open(url, timeout=within_s) as answer:
        body: bytes = answer.read()
    return body


def post(port: int, path: str, within_s: float = READY_WITHIN_S) -> bytes:
    """Send an empty POST request and return the body. Raises: OSError if unreachable or for an error status."""
    return get_page(urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST"), within_s)


def stop(process: subprocess.Popen[bytes], within_s: float = STOP_WITHIN_S) -> None:
    """Send SIGTERM and wait for `within_s`; then send SIGKILL to all processes of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=within_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its session, so its process group has its ID
    process.wait()


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])
