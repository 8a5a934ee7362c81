"""Peer: sherpa-onnx with a server loop like that of its published Python streaming server.

A FastAPI application with the frames of the load generator, a session for each connection, `/readyz`, and batch sizes
as JSON. Each message is answered before the next one is read.

Streams with a complete chunk are queued; one consumer takes all of them, up to a maximum, and decodes them as one batch
in a thread, with a future for each stream. When the queue is empty the consumer sleeps, as the published one does.
Features, batching of states and greedy CTC are sherpa's. A chunk needs a few samples beyond its end (centered windows),
so each result is one step older than stated; these 80 ms are not counted against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import sherpa_onnx
import typer
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from model.published.published_model import PublishedModel

SAMPLE_RATE = 16_000
BYTES_PER_S = 2 * SAMPLE_RATE
METADATA = '{"type":"Metadata"}'
"""Last frame of a stream, followed by a normal close."""
TAIL_S = 0.5
"""Silence after the last audio: the network's lookahead of 320 ms, and the rest of a chunk."""


class Consumer:
    """Batches ready streams."""

    def __init__(self, recognizer: Any, *, max_batch: int, max_wait_ms: float) -> None:
        self._recognizer = recognizer
        self._max_batch, self._wait_s = max_batch, max_wait_ms * 1e-3
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[None]]] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nn")
        self.batches: Counter[int] = Counter()  # number of batches by size

    async def decode(self, stream: Any) -> None:
        """Wait until one chunk of this stream has been decoded."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((stream, done))
        await done

    async def run(self) -> None:
        """Decode batches continuously."""
        loop = asyncio.get_running_loop()
        while True:
            if self._queue.empty():
                await asyncio.sleep(self._wait_s)
                continue
            count = min(self._queue.qsize(), self._max_batch)
            batch = [self._queue.get_nowait() for _ in range(count)]
            self.batches[count] += 1
            await loop.run_in_executor(self._pool, self._recognizer.decode_streams, [stream for stream, _ in batch])
            for _, done in batch:
                if not done.done():
                    done.set_result(None)


class SherpaSession:
    """One stream in sherpa-onnx."""

    def __init__(self, recognizer: Any, consumer: Consumer, *, sparing: bool) -> None:
        """A `sparing` session answers only messages that complete a chunk, for models with longer chunks."""
        self._recognizer, self._consumer = recognizer, consumer
        self._sparing = sparing
        self._stream = recognizer.create_stream()
        self._received = 0  # bytes

    async def audio(self, data: bytes) -> AsyncIterator[str]:
        """Add audio and decode complete chunks; yields one result per message."""
        if data:
            self._received += len(data)
            self._accept(np.frombuffer(data, np.int16).astype(np.float32) / 32768)
            if self._sparing and not self._recognizer.is_ready(self._stream):
                return
            yield await self._answer(is_final=False)

    async def end(self) -> str:
        """End the stream and return the last result."""
        self._accept(np.zeros(round(TAIL_S * SAMPLE_RATE), np.float32))
        return await self._answer(is_final=True)

    def _accept(self, samples: Any) -> None:
        self._stream.accept_waveform(SAMPLE_RATE, samples)

    async def _answer(self, *, is_final: bool) -> str:
        while self._recognizer.is_ready(self._stream):
            await self._consumer.decode(self._stream)
        text = " ".join(self._recognizer.get_result(self._stream).split())
        return results(self._received / BYTES_PER_S, text, is_final=is_final)


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


async def converse(socket: WebSocket, session: SherpaSession) -> None:
    """Serve one stream until it ends."""
    await socket.accept()
    try:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            if "CloseStream" in (message.get("text") or ""):
                await socket.send_text(await session.end())
                await socket.send_text(METADATA)
                await socket.close()
                return
            async for answer in session.audio(message.get("bytes") or b""):
                await socket.send_text(answer)
    except (WebSocketDisconnect, RuntimeError):  # the client disconnected
        return


def application(recognizer: Any, consumer: Consumer, *, sparing: bool) -> FastAPI:
    """Return an application with a session for each connection."""

    @contextlib.asynccontextmanager
    async def consuming(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(consumer.run())
        yield
        task.cancel()

    app = FastAPI(lifespan=consuming)

    @app.get("/readyz")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/batches")
    async def batches() -> dict[str, int]:
        return {str(size): count for size, count in sorted(consumer.batches.items())}

    @app.websocket("/v1/listen")
    async def listen(socket: WebSocket) -> None:
        await converse(socket, SherpaSession(recognizer, consumer, sparing=sparing))

    return app


def _published(folder: Path, threads: int) -> Any:
    """Return a recognizer of a published model. Raises: PublishedModelError."""
    model = PublishedModel.load(folder, device="cpu")
    files = {role: path.name for role, path in model.files.graphs.items()}
    return _recognizer(model.contract.kind, folder, threads, files)


def _recognizer(kind: str, folder: Path, threads: int, files: Mapping[str, str]) -> Any:
    make = "from_transducer" if kind.endswith("transducer") else "from_" + kind.replace("-", "_")
    paths = {role: str(folder / name) for role, name in files.items()}
    tokens = str(folder / "tokens.txt")
    return getattr(sherpa_onnx.OnlineRecognizer, make)(tokens=tokens, num_threads=threads, **paths)


def main(
    *,
    port: Annotated[int, typer.Option()],
    folder: Annotated[Path, typer.Option(help="Folder written by `tutti export --int8`.")],
    model: Annotated[str, typer.Option(help="Model file: model.onnx or model.int8.onnx.")] = "model.onnx",
    published: Annotated[bool, typer.Option(help="The folder contains a published model of any kind.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of onnxruntime.")] = 1,
    max_batch: Annotated[int, typer.Option(help="Largest batch; the published default is 50.")] = 50,
    max_wait_ms: Annotated[
        float, typer.Option(help="Time that a batch waits, ms; the published default is 10.")
    ] = 10.0,
) -> None:
    """Serve until stopped."""
    recognizer = (
        _published(folder, threads) if published else _recognizer("nemo-ctc", folder, threads, {"model": model})
    )
    consumer = Consumer(recognizer, max_batch=max_batch, max_wait_ms=max_wait_ms)
    gc.freeze()
    app = application(recognizer, consumer, sparing=published)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    typer.run(main)
