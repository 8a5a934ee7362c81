"""The WebSocket side of the peers that are FastAPI applications.

Owns the conversation of one connection: one step after another, each answered before the next is begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fastapi import WebSocket, WebSocketDisconnect

from loadtest.peers.stream import FAREWELL, Card, Stream, is_close

S = TypeVar("S")


class Steps(Protocol[S]):
    """Runs the steps of any stream, whose state its caller keeps."""

    def fresh(self) -> S:
        """The state of a stream that has heard nothing."""
        ...

    async def step(self, pcm: bytes, state: S) -> tuple[Sequence[int], S]:
        """The best symbols of one step, and the next state."""
        ...


async def converse(socket: WebSocket, card: Card, steps: Steps[S]) -> None:
    """Serve one stream until it ends."""
    await socket.accept()
    stream, state = Stream(card), steps.fresh()
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if is_close(message.get("text")):
                for pcm in stream.rest():
                    symbols, state = await steps.step(pcm, state)
                    stream.heard(symbols)
                await socket.send_text(stream.final())
                await socket.send_text(FAREWELL)
                await socket.close()
                return
            for pcm in stream.audio(message.get("bytes") or b""):
                symbols, state = await steps.step(pcm, state)
                stream.heard(symbols)
                await socket.send_text(stream.partial())
    except (WebSocketDisconnect, RuntimeError):  # it left while it was answered
        return
