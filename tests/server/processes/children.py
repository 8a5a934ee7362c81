"""A child without a process, for tests of what owns children; tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


_numbers = itertools.count(1)


class FakeProcess:
    """What is used of a process."""

    def __init__(self) -> None:
        self.returncode: int | None = None


class FakeChannel:
    """Keeps all messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, tuple[int, ...]]] = []
        self.closed = False

    def tell(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        self.sent.append((message, descriptors))


class FakeChild:
    """A child that becomes ready and ends when the test says so."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.process, self.channel = FakeProcess(), FakeChannel()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False
        self.stopped = False

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def kill(self) -> None:
        self.process.returncode = -9

    async def stop(self) -> None:
        self.leaving = self.stopped = True
        self.process.returncode = 0
