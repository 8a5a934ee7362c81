"""Servers of the peers that are FastAPI applications: one conversation a connection, `/readyz` and batch sizes as JSON.

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
    """Rows by the size of the batch that they were in, shown as JSON under `/batches`."""

    rows: Counter[int] = field(default_factory=Counter)

    def ran(self, size: int) -> None:
        """A batch was run."""
        self.rows[size] += size

    def ran_row(self, size: int) -> None:
        """One row of a batch of this size was run: for servers that see rows alone."""
        self.rows[size] += 1

    def as_json(self) -> dict[str, float]:
        """Batches by size, for a JSON object."""
        return {str(size): rows / size for size, rows in sorted(self.rows.items())}


class Session(Protocol):
    """One stream: audio in, `Results` frames out."""

    def audio(self, data: bytes) -> AsyncIterator[str]:
        """Take audio; yields the answers to it."""
        ...

    async def end(self) -> str:
        """No audio follows; returns the final."""
        ...


class Steps(Protocol[S]):
    """Runs the steps of any stream, whose state its caller keeps."""

    def fresh(self) -> S:
        """The state of a new stream."""
        ...

    async def step(self, pcm: bytes, state: S) -> tuple[Sequence[int], S]:
        """The best symbols of one step, and the next state."""
        ...


class StepSession(Generic[S]):
    """A stream whose steps are run by `Steps` and decoded here."""

    def __init__(self, card: Card, steps: Steps[S]) -> None:
        self._stream, self._steps, self._state = Stream(card), steps, steps.fresh()

    async def audio(self, data: bytes) -> AsyncIterator[str]:
        """Run the steps that are whole now; each is answered by the text so far."""
        for pcm in self._stream.audio(data):
            await self._run(pcm)
            yield self._stream.partial()

    async def end(self) -> str:
        """Run the last steps; returns the final."""
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
    except (WebSocketDisconnect, RuntimeError):  # it left while it was answered
        return


def create_app(
    session: Callable[[], Session],
    sizes: BatchSizes,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """An application that serves a session for each connection."""
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
