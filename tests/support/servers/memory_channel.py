"""A channel between a front end's coordinator and a `CoordinationServer` in the same event loop, by way of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from server.coordination.messages import Answer, Notice, Request
from server.coordination.serving import CoordinationServer
from server.errors import ServerNotReady

encode = msgspec.msgpack.Encoder().encode
decode_sent = msgspec.msgpack.Decoder(Request | Notice).decode


class MemoryChannel:
    """Implements `Channel`: each message arrives in the next turn of the event loop, in order."""

    def __init__(self, server: CoordinationServer, child: int) -> None:
        self.server = server
        self.child = child
        self.lost = False
        self.sent: list[str] = []  # types of the messages

    async def request(self, message: Request) -> Any:
        """Send a message; wait for its answer."""
        if self.lost:
            raise ServerNotReady("the supervisor has ended")
        decided: asyncio.Future[asyncio.Future[Answer]] = asyncio.get_running_loop().create_future()

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
        self.sent.append(type(message).__name__)
        asyncio.get_running_loop().call_soon(arrive, encode(message))
