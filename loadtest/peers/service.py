"""FastAPI application of a peer: one session per connection, `/readyz`, batch sizes as JSON, the generator's frames.

Each message is answered before the next one is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

SAMPLE_BYTES = 2
BYTES_PER_S = 16_000 * SAMPLE_BYTES
METADATA = '{"type":"Metadata"}'
"""Last frame of a stream, followed by a normal close."""


@dataclass(slots=True)
class BatchSizes:
    """Counts rows by the size of their batch, for `/batches`."""

    rows: Counter[int] = field(default_factory=Counter)

    def ran(self, size: int) -> None:
        """Count a batch."""
        self.rows[size] += size

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


def is_close(text: str | None) -> bool:
    """Whether a text frame ends the audio."""
    return text is not None and "CloseStream" in text


def results(cursor_s: float, text: str, *, is_final: bool) -> str:
    """Return a `Results` frame for all audio up to the cursor."""
    frame = {
        "type": "Results",
        "start": 0.0,
        "duration": round(cursor_s, 6),
        "is_final": is_final,
        "channel": {"alternatives": [{"transcript": text}]},
    }
    return msgspec.json.encode(frame).decode()


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
