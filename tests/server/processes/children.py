"""A child without a process, for tests of what owns children."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from server.errors import EngineDead
from server.processes.children import Role

_numbers = itertools.count(1)


class FakeProcess:
    """What is used of a process."""

    def __init__(self) -> None:
        self.returncode: int | None = None


class FakeChannel:
    """Keeps all messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, tuple[int, ...]]] = []
        self.requested: list[Any] = []
        self.closed = False

    def tell(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        self.sent.append((message, descriptors))

    async def request(self, message: Any) -> None:
        self.requested.append(message)


class FakeChild:
    """A child that becomes ready and ends when the test says so."""

    def __init__(self) -> None:
        self.number, self.role = next(_numbers), Role.FRONT_END
        self.process, self.channel = FakeProcess(), FakeChannel()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False
        self.stopped = False
        self.models: dict[str, str] = {}
        self.points = 0  # given to the kernel, for a lack of memory

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def has_started(self) -> bool:
        return self.ready.done() and self.ready.exception() is None

    def require_alive(self) -> None:
        if not self.alive:
            raise EngineDead("it has ended")

    def end_first(self, points: int) -> None:
        self.points = points

    def kill(self) -> None:
        self.process.returncode = -9

    async def stop(self) -> None:
        self.leaving = self.stopped = True
        self.process.returncode = 0


async def settled() -> None:
    """Let the tasks that can continue do so."""
    for _ in range(20):
        await asyncio.sleep(0)
