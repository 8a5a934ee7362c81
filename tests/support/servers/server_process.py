"""A server in a separate process: for exits, signals, descriptors and other processors, which a thread cannot test."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import httpx
from websockets.sync.client import connect

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import RAW, Client, transcript
from tests.support.servers.recognizers.spelling import spell

Line = dict[str, Any]
FAULTY = Path(__file__).parent / "faulty_server.py"
REAL = """
import json, sys
from server import serve
from server.settings import Settings
sys.exit(serve.run(Settings(**json.loads(sys.argv[1]))))
"""
"""A server of the model that its settings name: `ServerProcess(program=("-c", REAL))`."""
START_S = 60.0  # on a machine that is busy elsewhere
COMPILE_S = 240.0  # more where machine code for this kind of processor was never kept


class ServerProcess:
    """Runs inside a `with` block; its log is read, unless `stderr` redirects it."""

    def __init__(
        self,
        *,
        stderr: int = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] = os.environ,
        shell: str = '"$@"',
        program: Sequence[str] = (str(FAULTY),),
        start_s: float = START_S,
        **settings: Any,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        settings = {"port": self.port, "log_format": "json", "max_streams": 64} | settings
        command = [sys.executable, *program, json.dumps(settings)]
        self._start_s = start_s
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self.log: list[Line] = []
        self.process = subprocess.Popen(
            ["sh", "-c", f"exec {shell}", "sh", *command],
            stderr=stderr,
            text=True,
            cwd=FAULTY.parents[3],
            env={**inherited, "PYTHONPATH": ".", **(environment or {})},
        )
        self.read_log = self.process.stderr is not None

    def __enter__(self) -> Self:
        if self.read_log:
            threading.Thread(target=self._read, name="server log", daemon=True).start()
        self._wait_for_port()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(timeout=WAIT_S)
        if self.process.stderr is not None and not self.read_log:
            self.process.stderr.close()

    def stop(self, *signals: int) -> int:
        """Send these signals, and return the exit status."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_S)

    def wait_for(self, event: str) -> Line:
        """Return the next log line of this event."""
        while True:
            line = self._lines.get(timeout=WAIT_S)
            assert line is not None, f"the log ended without {event!r}: {self.log}"
            if line["event"] == event:
                return line

    def rest_of_log(self) -> list[Line]:
        """Every line, once the process has ended."""
        while self._lines.get(timeout=WAIT_S) is not None:
            pass
        return self.log

    @property
    def http(self) -> httpx.Client:
        """A client for the plain endpoints."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WAIT_S, trust_env=False)

    def metric(self, line: str) -> float:
        """The value of one sample of `/metrics`."""
        with self.http as http:
            rows = http.get("/metrics").text.splitlines()
        return next(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(line + " "))

    def listen(self, **query: Any) -> Client:
        """Open a live stream."""
        url = f"ws://127.0.0.1:{self.port}/v1/listen?{urlencode(RAW | query)}"
        return Client(connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None))

    def works(self) -> bool:
        """Return whether a stream is recognized."""
        with self.listen() as client:
            client.send(spell("still here"))
            return transcript(client.finish()) == "still here"

    def until(self, holds: Callable[[], bool]) -> None:
        """Poll until a condition of the process is true."""
        end_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end_s, "it never came to hold"
            time.sleep(0.05)

    def _wait_for_port(self) -> None:
        end_s = time.monotonic() + self._start_s
        while True:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log}"
            assert time.monotonic() < end_s, "the server did not start"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for text in stderr:
                line = json.loads(text) if text.startswith("{") else {"event": "", "raw": text}
                self.log.append(line)
                self._lines.put(line)
        self._lines.put(None)
