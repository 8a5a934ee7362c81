"""The real server: `tutti serve` with the shipped model, as a separate process on a free loopback port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

from loadtest.served import free_port, serve_command

ROOT = Path(__file__).parent.parent.parent
KEY, OTHER_KEY, THIRD_KEY = "key-of-alice", "key-of-bob", "key-of-carol"
READY_WITHIN_S = 90.0  # where the compiled decoder is not in its cache yet
STOP_WITHIN_S = 20.0
ASK_EVERY_S = 0.1

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


PROCESSES = {"front_ends": 2, "engine_spare": "false"}
"""Clients meet a server of several processes, as on a machine of four cores: other tests have one process."""


class ServerProcess:
    """One replica; ready inside a `with` block, stopped after it."""

    def __init__(self, **settings: object) -> None:
        """`settings` are those of `server/settings.py`, by name."""
        self.port = free_port()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        chosen = {
            "api_keys": f'["{KEY}", "{OTHER_KEY}", "{THIRD_KEY}"]',
            "log_level": "debug",
            **PROCESSES,
        }
        given = {f"TUTTI_{name.upper()}": str(value) for name, value in (chosen | settings).items()}
        self._process = subprocess.Popen(
            [*_with_us(), *serve_command(self.port, [])],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")} | given,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        try:
            self.wait()
        finally:
            self._kill()

    def drain(self) -> None:
        """Send the stop signal, as an operator does."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return its exit code. Raises: subprocess.TimeoutExpired."""
        return self._process.wait(timeout=STOP_WITHIN_S)

    @property
    def log(self) -> str:
        """The server's output so far."""
        return os.pread(self._output.fileno(), 2**24, 0).decode(errors="replace")

    def get(self, path: str) -> str:
        """The body of a plain endpoint."""
        with _direct.open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """Return the value of a sample, by name and labels as exposed; 0 if absent."""
        values = [line.rsplit(" ", 1)[1] for line in self.get("/metrics").splitlines() if line.startswith(f"{name} ")]
        return float(values[0]) if values else 0.0

    def wait_for_streams(self, most: int) -> None:
        """Return once at most this many streams are open."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        while json.loads(self.get("/v1/status"))["slots_used"] > most:
            assert time.monotonic() < deadline_s, f"more than {most} streams are still open:\n{self.log}"
            time.sleep(ASK_EVERY_S)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not self._is_ready():
            try:
                self._process.wait(timeout=ASK_EVERY_S)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline_s, f"the server is not ready:\n{self.log}"
            else:
                raise AssertionError(f"the server ended:\n{self.log}")

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _is_ready(self) -> bool:
        try:
            self.get("/readyz")
        except OSError:
            return False
        return True


def _with_us() -> list[str]:
    """Return a command prefix that ends the command when this process is killed, if `setpriv` is installed."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "TERM"] if program else []
