"""Server processes of our own: started on a free loopback port, polled until they are ready, stopped by process id.

Knows the command line of `tutti serve` and its `/readyz`. Replicas, proxies and peers use the same functions.
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
"""Loading the model and its warm-up batches, on a busy machine."""

ASK_EVERY_S = 0.1
ANSWER_WITHIN_S = 10.0
STOP_WITHIN_S = 20.0
SHOWN_LINES = 20

ALL_IN = ("--max-streams", "1024")
"""No stream is refused: on a slow machine the latency shall show. Later options overrule it."""

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


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
        process = start(serve_command(port, options), output)
        try:
            wait_until_ready(process, lambda: is_ready(port), output)
            yield f"ws://127.0.0.1:{port}", process.pid
        finally:
            stop(process)


def server_at(url: str | None, options: Sequence[str]) -> contextlib.AbstractContextManager[str]:
    """The URL of a running server, or of one that is started with these options."""
    return contextlib.nullcontext(url) if url is not None else served(options)


def free_port() -> int:
    """A loopback port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(
    command: Sequence[str], output: IO[bytes] | None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: a Ctrl-C ends the level first, and `stop` ends all its workers."""
    return subprocess.Popen(  # noqa: S603 - our own command
        command,
        cwd=ROOT,
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
    """Return when `ready` holds. Raises: ServerNotReady with the end of the output."""
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
    """The body of a page of the server on this port. Raises: OSError: no server, or an error status."""
    with _direct.open(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_WITHIN_S) as answer:
        body: bytes = answer.read()
    return body


def stop(process: subprocess.Popen[bytes], within_s: float = STOP_WITHIN_S) -> None:
    """SIGTERM; after `within_s`, or when it has ended, SIGKILL for what is left of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=within_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its session, so the group bears its number
    process.wait()


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])
