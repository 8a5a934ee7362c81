"""Peer (c): mosec's dynamic batching behind a small WebSocket proxy, because mosec supports only HTTP.

The proxy keeps each stream's state as packed bytes and posts it with every step over persistent loopback connections.
It starts mosec as a child process and stops it by its process ID.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Annotated

import aiohttp
import typer
from fastapi import FastAPI

from loadtest import served
from loadtest.benchmarks.peers.mosec_model import OPTIONS
from loadtest.benchmarks.peers.network import PeerNetwork
from loadtest.benchmarks.peers.service import BatchSizes, StepSession, create_app, serve
from loadtest.benchmarks.peers.stream import Card

ASK_EVERY_S = 0.2
STOP_WITHIN_S = 10.0


class Posted:
    """Runs steps by posting them to mosec."""

    def __init__(self, url: str, card: Card, row_bytes: int, sizes: BatchSizes) -> None:
        self._url, self._row_bytes, self._sizes = url, row_bytes, sizes
        self._step_bytes, self._frames = card.step_bytes, card.frames_per_step
        self.session: aiohttp.ClientSession | None = None

    def fresh(self) -> bytes:
        """Return the packed state of a new stream."""
        return bytes(self._row_bytes)

    async def step(self, pcm: bytes, state: bytes) -> tuple[Sequence[int], bytes]:
        """Run one step in a batch formed by mosec. Raises: RuntimeError."""
        assert self.session is not None
        async with self.session.post(self._url, data=state + pcm) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"mosec responded with status {answer.status}")
        self._sizes.ran_row(int.from_bytes(body[:2], "little"))
        after = 2 + self._frames
        return body[2:after], body[after:]

    async def is_ready(self) -> bool:
        """Whether a step can run."""
        with contextlib.suppress(aiohttp.ClientError, RuntimeError):
            await self.step(bytes(self._step_bytes), self.fresh())
            return True
        return False


@contextlib.asynccontextmanager
async def _session_of(steps: Posted, _: FastAPI) -> AsyncIterator[None]:
    """Open connections to mosec while the proxy runs; waits until a step can run."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        steps.session = session
        while not await steps.is_ready():  # noqa: ASYNC110 - mosec becomes ready without a signal
            await asyncio.sleep(ASK_EVERY_S)
        yield


@contextlib.contextmanager
def _mosec(port: int, **settings: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "loadtest.benchmarks.peers.mosec_model",
            "--address",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--path", folder, "--log-level", "warning"]
        process = served.start(command, None, os.environ | {OPTIONS: json.dumps(settings)})
        try:
            yield
        finally:
            served.stop(process, STOP_WITHIN_S)


def main(
    *,
    port: Annotated[int, typer.Option()],
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    workers: Annotated[int, typer.Option(help="Model processes.")] = 1,
    max_batch: Annotated[int, typer.Option()] = 64,
    max_wait_ms: Annotated[int, typer.Option(help="Time that a batch waits to fill, ms; mosec's minimum is 1.")] = 5,
) -> None:
    """Serve until stopped."""
    network = PeerNetwork(threads=1, recorded=False)
    inner, sizes = served.free_port(), BatchSizes()
    steps = Posted(f"http://127.0.0.1:{inner}/inference", network.card, network.row_bytes, sizes)
    gc.freeze()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # uvicorn raises the signal again at its end, which would leave mosec running
    with _mosec(inner, threads=threads, workers=workers, max_batch=max_batch, max_wait_ms=max_wait_ms):
        serve(create_app(lambda: StepSession(network.card, steps), sizes, partial(_session_of, steps)), port)


if __name__ == "__main__":
    typer.run(main)
