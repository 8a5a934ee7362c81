"""One server of a comparison at a time: started on a free loopback port, watched until it is ready, stopped by pid."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.errors import ServerNotReady
from loadtest.peers import processes
from loadtest.served import free_port

READY_WITHIN_S = 120.0
ASK_EVERY_S = 0.2
ASK_WITHIN_S = 10.0
SHOWN_LINES = 20
ROOT = Path(__file__).parent.parent.parent

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Where streams go."""
        return f"ws://127.0.0.1:{self.port}"

    def cpu_by_name(self) -> Counter[str]:
        """Processor seconds of its processes until now."""
        return processes.cpu_by_name(processes.tree(self.pid))

    def batches(self) -> dict[int, float]:
        """Batches by size until now; empty where the server does not say."""
        try:
            return msgspec.json.decode(_get(self.port, "/batches"), type=dict[int, float], strict=False)
        except (OSError, msgspec.DecodeError):
            return {}


@contextlib.contextmanager
def launched(command: Sequence[str]) -> Iterator[Running]:
    """A server that is ready; it is stopped on leaving.

    Raises:
        ServerNotReady: it ended, or took too long; with the end of what it printed.
    """
    port = free_port()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--port", str(port)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C ends the level first, then the server
        )
        try:
            problem = _problem(process, port)
            if problem:
                output.seek(0)
                tail = output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
                raise ServerNotReady("\n".join([problem, *tail]))
            yield Running(port, process.pid)
        finally:
            processes.stop(process)


def _problem(process: subprocess.Popen[bytes], port: int) -> str:
    """Wait until the server is ready; what kept it, empty when it is."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            _get(port, "/readyz")
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"the server ended with {process.wait(timeout=ASK_EVERY_S)}:"
    return f"the server was not ready within {READY_WITHIN_S:g} s:"


def _get(port: int, path: str) -> bytes:
    with _direct.open(f"http://127.0.0.1:{port}{path}", timeout=ASK_WITHIN_S) as answer:
        body: bytes = answer.read()
    return body
