"""Replicas of `tutti serve` that are made to fail: killed, stopped in their tracks, restarted one after another.

Owns their processes, by pid. Knows no proxy and no stream.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loadtest import served
from loadtest.errors import ServerNotReady
from loadtest.served import free_port, serve_command

ENDS_WITHIN_S = 60.0
"""Beside what a drain may take: the flush, and the process's own end."""


@dataclass(slots=True)
class Replica:
    """One server process after another on one port."""

    port: int
    options: Sequence[str]
    env: dict[str, str]
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start, and wait until it is ready. Raises: ServerNotReady."""
        self.process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own command; it takes a millisecond
            serve_command(self.port, self.options),
            cwd=Path(__file__).parents[2],
            env=self.env,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{self.port}/readyz"
        await asyncio.to_thread(served._wait_until_ready, self.process, address, self.output)

    def kill(self) -> None:
        """As a crash or a lost machine."""
        self._signal(signal.SIGKILL)

    def hang(self) -> None:
        """Its sockets stay open, and nothing comes out of them."""
        self._signal(signal.SIGSTOP)

    async def restart(self, within_s: float) -> int:
        """Drain and start anew, as a supervisor does. Returns: the exit code. Raises: ServerNotReady."""
        code = await self.drained(within_s)
        await self.start()
        return code

    async def drained(self, within_s: float) -> int:
        """SIGTERM, and wait for the end. Returns: the exit code. Raises: ServerNotReady: it did not end."""
        self._signal(signal.SIGTERM)
        assert self.process is not None, "it was started"
        try:
            return await asyncio.to_thread(self.process.wait, within_s + ENDS_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ServerNotReady(f"the replica on port {self.port} did not end") from error

    def remove(self) -> None:
        """Whatever its state, it is gone afterwards."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()  # it reaches a stopped process too
            self.process.wait()
        self.output.close()

    def log(self) -> str:
        """What it has printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def replicas(number: int, options: Sequence[str]) -> AsyncIterator[list[Replica]]:
    """So many that are ready, with one key for tickets; they are gone on leaving. Raises: ServerNotReady."""
    key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    # One thread each, whatever the options say of torch: several share a machine's cores here.
    env = os.environ | {"TUTTI_RESUME_KEYS": f'["{key}"]', "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    started = [Replica(free_port(), options, env) for _ in range(number)]
    try:
        await asyncio.gather(*(replica.start() for replica in started))
        yield started
    finally:
        for replica in started:
            replica.remove()
