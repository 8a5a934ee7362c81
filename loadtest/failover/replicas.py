"""Replicas of `tutti serve` that are made to fail: killed, suspended (SIGSTOP), or restarted one after another.

Owns their processes. Knows no proxy and no stream.
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
from typing import IO

from loadtest import served
from loadtest.errors import ServerNotReady

ENDS_WITHIN_S = 60.0
"""Beyond the drain's own timeout: the flush, and the end of the process."""


@dataclass(slots=True)
class Replica:
    """A server on one port; a restart replaces its process."""

    port: int
    options: Sequence[str]
    env: dict[str, str]
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start, and wait until it is ready. Raises: ServerNotReady."""
        self.process = served.start(served.serve_command(self.port, self.options), self.output, self.env)
        await asyncio.to_thread(served.wait_until_ready, self.process, lambda: served.is_ready(self.port), self.output)

    def kill(self) -> None:
        """SIGKILL: as a crash or a lost machine."""
        self._signal(signal.SIGKILL)

    def hang(self) -> None:
        """SIGSTOP: its sockets stay open, and nothing is sent on them."""
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
        """End its process, in whatever state it is, and forget its output."""
        if self.process is not None and self.process.poll() is None:
            served.stop(self.process, within_s=0.0)  # SIGKILL reaches a suspended process too
        self.output.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal(number)


def environment() -> dict[str, str]:
    """Variables of replicas that share a key for tickets.

    One thread each, independent of the options for torch: they share the cores of this machine.
    """
    key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return os.environ | {"TUTTI_RESUME_KEYS": f'["{key}"]', "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@contextlib.asynccontextmanager
async def replicas(number: int, options: Sequence[str]) -> AsyncIterator[list[Replica]]:
    """Start `number` replicas with one key for tickets; they are ended on leaving. Raises: ServerNotReady."""
    env = environment()
    started = [Replica(served.free_port(), options, env) for _ in range(number)]
    try:
        await asyncio.gather(*(replica.start() for replica in started))
        yield started
    finally:
        for replica in started:
            replica.remove()
