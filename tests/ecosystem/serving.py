"""The real server: `tutti serve` with the shipped model, as a separate process on a free loopback port."""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Self

from loadtest.served import ASK_EVERY_S, ROOT, STOP_WITHIN_S, free_port, get, is_ready, serve_command, start, stop
from loadtest.served import wait_until_ready as wait_until

__all__ = ["KEY", "OTHER_KEY", "ROOT", "THIRD_KEY", "ServerProcess"]
KEY, OTHER_KEY, THIRD_KEY = "key-of-alice", "key-of-bob", "key-of-carol"
SETTINGS = {
    "api_keys": json.dumps([KEY, OTHER_KEY, THIRD_KEY]),
    "log_level": "debug",
    "front_ends": 2,  # clients meet a server of several processes, as on a machine of four cores
    "engine_spare": "false",
}


class ServerProcess:
    """One replica; ready inside a `with` block, stopped after it."""

    def __init__(self, **settings: object) -> None:
        """`settings` are those of `server/settings.py`, by name."""
        self.port = free_port()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        given = {f"TUTTI_{name.upper()}": str(value) for name, value in (SETTINGS | settings).items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
        self._process = start(serve_command(self.port, []), self._output, inherited | given)

    def __enter__(self) -> Self:
        try:
            wait_until(self._process, lambda: is_ready(self.port), self._output)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
        self._output.close()

    def drain(self) -> None:
        """Send the stop signal, as an operator does."""
        self._process.terminate()

    def wait(self) -> int:
        """Return its exit code. Raises: subprocess.TimeoutExpired."""
        return self._process.wait(timeout=STOP_WITHIN_S)

    @property
    def log(self) -> str:
        """The server's output so far."""
        return os.pread(self._output.fileno(), 2**24, 0).decode(errors="replace")

    def wait_for_streams(self, most: int) -> None:
        """Return once at most this many streams are open."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        while json.loads(get(self.port, "/v1/status"))["slots_used"] > most:
            assert time.monotonic() < deadline_s, f"more than {most} streams are still open:\n{self.log}"
            time.sleep(ASK_EVERY_S)
