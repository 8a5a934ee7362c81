"""A TCP proxy before several servers that cuts connections after a given number of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager

from tests.support.clients.in_thread import in_thread

PIECE = 4096


class CuttingProxy:
    """Hands each connection to the next server; connection n is cut after `cuts[n]` bytes to the client."""

    def __init__(self, hosts: Sequence[str], cuts: Sequence[int]) -> None:
        self._hosts = itertools.cycle(hosts)
        self._cuts = iter(cuts)
        self.cut = 0
        self.port = 0

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"ws://127.0.0.1:{self.port}"

    def running(self) -> AbstractContextManager[CuttingProxy]:
        """Serve from a thread with its own event loop."""
        return in_thread(self._serving())

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[CuttingProxy]:
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = next(self._hosts).split(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        limit = next(self._cuts, None)
        tasks = [
            asyncio.create_task(_copy(reader, there_writer, None)),
            asyncio.create_task(_copy(there_reader, writer, limit)),
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.cut += any(task.result() for task in done)
        for task in tasks:
            task.cancel()
        for end in (writer, there_writer):
            end.transport.abort()
        await asyncio.wait(tasks)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> bool:
    """Copy until the end or the limit; return whether the limit was reached."""
    passed = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            passed += len(piece)
            if limit is not None and passed > limit:
                return True
            writer.write(piece)
            await writer.drain()
    return False
