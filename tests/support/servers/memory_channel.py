"""A channel between a front end's coordinator and a `CoordinationServer` in the same event loop, by way of bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from server.coordination.messages import Answer, Notice, RefuseHint, Request
from server.coordination.serving import CoordinationServer
from server.errors import ServerNotReady

encode = msgspec.msgpack.Encoder().encode
decode_sent = msgspec.msgpack.Decoder(Request | Notice).decode
decode_received = msgspec.msgpack.Decoder(Answer | RefuseHint).decode


class MemoryChannel:
    """Implements `Channel`: each message arrives in the next turn of the event loop, in order."""

    def __init__(self, server: CoordinationServer, child: int) -> None:
        self.server = server
        self.child = child
        self.lost = False
        self.sent: list[str] = []  # types of the messages

    async def request(self, message: Request) -> Answer:
        """Send a message; wait for its answer."""
        if self.lost:
            raise ServerNotReady("the supervisor has ended")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._send(message, answer)
        received: Any = decode_received(await answer)
        return received

    def tell(self, message: Notice) -> None:
        """Send a message without an answer."""
        if not self.lost:
            self._send(message, None)

    def _send(self, message: Request | Notice, answer: asyncio.Future[bytes] | None) -> None:
        self.sent.append(type(message).__name__)

        def reply(given: Answer) -> None:
            assert answer is not None, "a notice has no answer"
            if not answer.done():
                asyncio.get_running_loop().call_soon(lambda: answer.done() or answer.set_result(encode(given)))

        asyncio.get_running_loop().call_soon(self._arrive, encode(message), reply)

    def _arrive(self, data: bytes, reply: Any) -> None:
        if not self.lost:
            self.server.receive(self.child, decode_sent(data), reply)
