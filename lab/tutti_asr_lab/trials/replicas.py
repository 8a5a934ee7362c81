"""Replicas of `tutti serve` for fault injection: killed, suspended (SIGSTOP), or restarted one after another."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loadtest import served
from loadtest.errors import ServerNotReady

ENDS_WITHIN_S = 60.0
"""Time beyond the drain timeout for the flush and the exit of the process."""


CHEAP = {"TUTTI_FRONT_ENDS": "0", "TUTTI_DECODER": "greedy"}
"""One process and a cheap decoder, since the replicas share the machine. Variables: 0.1.0 lacks the options."""


@dataclass(slots=True)
class Replica:
    """A server on a fixed port; a restart replaces its process.

    `tree`: the checkout whose server is started; a restart starts that of this checkout.
    """

    port: int
    options: Sequence[str]
    env: dict[str, str]
    tree: Path = served.ROOT
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start and wait until it is ready. Raises: ServerNotReady."""
        self.process = served.start(
            served.serve_command(self.port, self.options), self.output, self.env, tree=self.tree
        )
        await asyncio.to_thread(served.wait_until_ready, self.process, lambda: served.is_ready(self.port), self.output)

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash or a lost machine."""
        self._signal(signal.SIGKILL)

    def hang(self) -> None:
        """Send SIGSTOP: its sockets stay open but silent."""
        self._signal(signal.SIGSTOP)

    async def restart(self, within_s: float) -> int:
        """Drain and start again, as a supervisor does. Returns: the exit code. Raises: ServerNotReady."""
        code = await self.drained(within_s)
        self.tree = served.ROOT
        await self.start()
        return code

    async def drained(self, within_s: float) -> int:
        """Send SIGTERM and wait for the exit. Returns: the exit code. Raises: ServerNotReady if it does not exit."""
        self._signal(signal.SIGTERM)
        assert self.process is not None, "it was started"
        try:
            return await asyncio.to_thread(self.process.wait, within_s + ENDS_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ServerNotReady(f"the replica on port {self.port} did not exit in time") from error

    def remove(self) -> None:
        """Kill its process in any state, and close its output."""
        if self.process is not None and self.process.poll() is None:
            served.stop(self.process, within_s=0.0)  # SIGKILL also ends a suspended process
        self.output.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal(number)


def environment() -> dict[str, str]:
    """Return the environment of replicas that share a key for resume tickets.

    One thread each, since the replicas share the cores of this machine.
    """
    key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return os.environ | {"TUTTI_RESUME_KEYS": f'["{key}"]', "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@contextlib.asynccontextmanager
async def replicas(
    number: int, options: Sequence[str], variables: Mapping[str, str] | None = None, tree: Path = served.ROOT
) -> AsyncIterator[list[Replica]]:
    """Start `number` replicas with a shared key for resume tickets; killed on exit. Raises: ServerNotReady.

    `variables` are added to their environment. `tree`: the checkout that they run until they are restarted.
    """
    env = environment() | dict(variables or {})
    started = [Replica(served.free_port(), options, env, tree) for _ in range(number)]
    try:
        await asyncio.gather(*(replica.start() for replica in started))
        yield started
    finally:
        for replica in started:
            replica.remove()
