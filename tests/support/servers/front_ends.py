"""A server with front ends as `tutti serve` starts it: its processes, streams of real speech, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from loadtest.served import served_process
from tutti_asr_lab.processes import Process, connections, tree
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_plain, play_resumable

WITHIN_S = 30.0
FRONT_END, ENGINE_HOST = "front_end", "engine_host"
RAW = "encoding=linear16&sample_rate=16000"
NOT_OPENED = (OSError, EOFError, ConnectionClosed, InvalidMessage, InvalidStatus, TimeoutError)


class FrontEnds:
    """Runs inside a `with` block; without a spare engine host, which takes as long to start, unless asked for."""

    def __init__(self, count: int, *options: str, log: Path | None = None, spare: bool = False) -> None:
        self._options = ("--max-streams", "64", "--admin-local", "--front-ends", str(count), *options)
        self._log, self._spare = log, spare
        self._stack = ExitStack()
        self.url = ""
        self.pid = 0
        self.seen: list[Process] = []
        """Every process that a test has asked about."""

    def __enter__(self) -> Self:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TUTTI_ENGINE_SPARE", str(self._spare))
            self.url, self.pid = self._stack.enter_context(served_process(self._options, self._log))
        self.processes()
        return self

    def __exit__(self, *_: object) -> None:
        self.processes()
        self._stack.close()
        self.until(lambda: not self.left())

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WITHIN_S, trust_env=False)

    def processes(self, name: str = "") -> list[Process]:
        """The server's processes, the oldest first, also those that have ended and are not reaped yet."""
        found = sorted(tree(self.pid), key=lambda each: int(each.began))
        self.seen += [each for each in found if all(each.began != other.began for other in self.seen)]
        return [each for each in found if each.name == name or not name]

    def left(self) -> list[Process]:
        """Processes that were seen and still run; one that waits for its parent to take note of its end does not."""
        return [each for each in self.seen if any(now.began == each.began for now in tree(each.pid)) and runs(each.pid)]

    def kill(self, process: Process, sig: int = signal.SIGKILL) -> None:
        os.kill(process.pid, sig)

    def metric(self, line: str) -> float:
        with self.http as http:
            rows = http.get("/metrics").text.splitlines()
        return next(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(line + " "))

    def until(self, holds: Callable[[], bool]) -> None:
        """Poll until a condition holds."""
        end_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end_s, "it never came to hold"
            time.sleep(0.05)

    async def play(self, streams: Sequence[Audio], *, resumable: bool = False, realtime: bool = True) -> list[Outcome]:
        """Play all audios at once, in real time or as fast as the server takes them."""
        play = play_resumable if resumable else play_plain
        return list(await asyncio.gather(*(play(self.url, audio, realtime=realtime) for audio in streams)))

    def both_serve(self) -> bool:
        """Whether two connections are at two front ends; not while one is lost."""
        with ExitStack() as clients:
            try:
                for _ in range(2):
                    clients.callback(self.opened().close)
            except NOT_OPENED:
                return False
            return [connections(process.pid) for process in self.processes(FRONT_END)] == [1, 1]

    def opened_and_closed(self) -> bool:
        """Whether a handshake succeeds."""
        try:
            self.opened().close()
        except NOT_OPENED:
            return False
        return True

    def opened(self, query: str = RAW) -> ClientConnection:
        """Open a stream. Raises: InvalidStatus if it is refused."""
        url = f"{self.url}/v1/listen?{query}"
        return connect(url, compression=None, open_timeout=WITHIN_S, proxy=None, legacy=True)


def runs(pid: int) -> bool:
    """Whether a process is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def close_code(client: ClientConnection) -> int | None:
    """Read to the end of a connection."""
    with suppress(ConnectionClosed):
        while True:
            client.recv(timeout=WITHIN_S)
    return client.close_code


def speech(count: int, seconds: float) -> list[Audio]:
    """Different audios of real speech."""
    return audios(count, seconds, seed=3)
