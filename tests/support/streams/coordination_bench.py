"""Decisions of a server for two front ends in one event loop, whose messages are bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from server.coordination.messages import Notice, RefuseHint, Request
from server.coordination.remote import RemoteCoordinator, RemoteSlots
from server.coordination.serving import CoordinationServer
from server.errors import Refused, ServerNotReady
from server.settings import Settings
from tests.support.servers.fakes import FakeClock

STEP_S = 0.08

encode = msgspec.msgpack.Encoder().encode
decode_sent = msgspec.msgpack.Decoder(Request | Notice).decode


class MemoryChannel:
    """Implements `Channel` in one event loop, by way of bytes: a message arrives in the next turn, in order."""

    def __init__(self, server: CoordinationServer, child: int) -> None:
        self.server = server
        self.child = child
        self.lost = False

    async def request(self, message: Request) -> Any:
        """Send a message; wait for its answer."""
        if self.lost:
            raise ServerNotReady("the supervisor has ended")
        decided: asyncio.Future[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

        def arrive(data: bytes) -> None:
            if not self.lost:
                answer = self.server.decide(self.child, decode_sent(data))
                if not decided.done():
                    decided.set_result(answer)

        self._send(message, arrive)
        answer = await asyncio.shield(await decided)  # a request that is cancelled here is not cancelled there
        return msgspec.msgpack.decode(encode(answer))

    def tell(self, message: Notice) -> None:
        """Send a message without an answer."""
        if not self.lost:
            self._send(message, self._arrived)

    def _arrived(self, data: bytes) -> None:
        if not self.lost:
            self.server.take(self.child, decode_sent(data))

    def _send(self, message: Request | Notice, arrive: Callable[[bytes], object]) -> None:
        asyncio.get_running_loop().call_soon(arrive, encode(message))


class Bench:
    """One server of decisions and two front ends, each with slots of the model `en`."""

    def __init__(self, warm_up: dict[int, float] | None = None, **settings: Any) -> None:
        front_ends = 2
        self.warm_up = warm_up or {1: 0.0005, 64: 0.004}
        self.settings = Settings(**{"max_openings_per_s": "off", **settings})
        self.clock = FakeClock()
        self.hints: list[str | None] = []
        self.server = CoordinationServer(self.settings, self.clock, on_hint=self._tell, wall_clock=self.clock)
        self.channels = [MemoryChannel(self.server, child) for child in range(front_ends)]
        self.ends = [RemoteCoordinator(self.settings, channel, self.clock) for channel in self.channels]
        self.used: list[int] = [0] * front_ends
        self.slots: list[RemoteSlots] = []

    async def open(self) -> None:
        """Let every front end serve the model, and report its warm-up."""
        for child, end in enumerate(self.ends):
            self.slots.append(end.open_slots("en", STEP_S, lambda used, child=child: self._use(child, used)))
        for slots in self.slots:
            slots.warmed_up(self.warm_up)
        await turns()

    def _use(self, child: int, used: int) -> None:
        self.used[child] = used

    def _tell(self, hint: RefuseHint) -> None:
        self.hints.append(hint.full)
        for end in self.ends:
            end.take(hint)

    def run(self, script: Callable[[Bench], Awaitable[None]]) -> None:
        async def play() -> None:
            await self.open()
            await script(self)

        asyncio.run(play())


def served(*warm_up: dict[int, float], **settings: Any) -> Callable[[Callable[[Bench], Any]], Callable[[], None]]:
    """Run a test that is a coroutine with a bench of these settings."""

    def decorate(test: Callable[[Bench], Any]) -> Callable[[], None]:
        def run() -> None:
            Bench(*warm_up, **settings).run(test)

        run.__doc__ = test.__doc__
        return run

    return decorate


async def turns(count: int = 20) -> None:
    """Let the event loop turn this often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def entered(attempts: list[Awaitable[Any]], *refused: type[Refused]) -> list[Any]:
    """Return what those attempts got that were not refused; run all at once."""
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, refused), outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
