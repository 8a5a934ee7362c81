"""FastAPI application of peers: one session per connection, `/readyz`, and batch sizes as JSON.

Each message is answered before the next one is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from loadtest.benchmarks.peers.stream import METADATA, Card, Stream, is_close

S = TypeVar("S")


@dataclass(slots=True)
class BatchSizes:
    """Counts rows by the size of their batch, for `/batches`."""

    rows: Counter[int] = field(default_factory=Counter)

    def ran(self, size: int) -> None:
        """Count a batch."""
        self.rows[size] += size

    def ran_row(self, size: int) -> None:
        """Count one row of a batch of this size, for servers that see only single rows."""
        self.rows[size] += 1

    def as_json(self) -> dict[str, float]:
        """Return the number of batches by size, for a JSON object."""
        return {str(size): rows / size for size, rows in sorted(self.rows.items())}


class Session(Protocol):
    """One stream, from audio to `Results` frames."""

    def audio(self, data: bytes) -> AsyncIterator[str]:
        """Process audio and yield its results."""
        ...

    async def end(self) -> str:
        """End the stream and return the final."""
        ...


class Steps(Protocol[S]):
    """Runs steps of streams; the caller keeps their states."""

    def fresh(self) -> S:
        """Return the state of a new stream."""
        ...

    async def step(self, pcm: bytes, state: S) -> tuple[Sequence[int], S]:
        """Return the best symbols of one step and the next state."""
        ...


class StepSession(Generic[S]):
    """A stream with steps run by `Steps`, decoded here."""

    def __init__(self, card: Card, steps: Steps[S]) -> None:
        self._stream, self._steps, self._state = Stream(card), steps, steps.fresh()

    async def audio(self, data: bytes) -> AsyncIterator[str]:
        """Run complete steps, and yield the text so far after each."""
        for pcm in self._stream.audio(data):
            await self._run(pcm)
            yield self._stream.partial()

    async def end(self) -> str:
        """Run the last steps and return the final."""
        for pcm in self._stream.rest():
            await self._run(pcm)
        return self._stream.final()

    async def _run(self, pcm: bytes) -> None:
        symbols, self._state = await self._steps.step(pcm, self._state)
        self._stream.add_symbols(symbols)


async def converse(socket: WebSocket, session: Session) -> None:
    """Serve one stream until it ends."""
    await socket.accept()
    try:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            if is_close(message.get("text")):
                await socket.send_text(await session.end())
                await socket.send_text(METADATA)
                await socket.close()
                return
            async for answer in session.audio(message.get("bytes") or b""):
                await socket.send_text(answer)
    except (WebSocketDisconnect, RuntimeError):  # the client disconnected
        return


def create_app(
    session: Callable[[], Session],
    sizes: BatchSizes,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Return an application with a session for each connection."""
    app = FastAPI(lifespan=lifespan)

    @app.get("/readyz")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/batches")
    async def batches() -> dict[str, float]:
        return sizes.as_json()

    @app.websocket("/v1/listen")
    async def listen(socket: WebSocket) -> None:
        await converse(socket, session())

    return app


def serve(app: FastAPI, port: int) -> None:
    """Serve on loopback until stopped."""
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
