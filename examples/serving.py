"""An engine whose streams are awaited on one event loop, and the command line of an example.

The engine's thread sends each event to the loop in one call; nothing else is shared between the two threads.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

import typer
import uvicorn
from fastapi import FastAPI, Query, WebSocket, WebSocketDisconnect
from numpy.typing import NDArray

from batching import (
    BatchDone,
    BatchingError,
    Engine,
    EngineDown,
    EngineEvent,
    EngineStopped,
    Policy,
    SlotModel,
    StreamFailed,
    StreamId,
)

MAX_QUEUED = 64  # waiting steps of one stream
STOP_S = 10.0
TRY_AGAIN_LATER = 1013  # WebSocket close code: https://www.iana.org/assignments/websocket

Deadline = Annotated[float, Query(gt=0, le=10_000)]
"""Milliseconds within which a step should be answered, a parameter of the address."""


class Answer(NamedTuple):
    """The model's outputs for one step of a stream, and whether they came after its deadline."""

    output: NDArray[Any]
    late: bool


class Serving:
    """A slot model, and the engine that batches the steps of its streams."""

    def __init__(self, model: SlotModel) -> None:
        self.largest_batch = 0  # rows, so far
        self._streams: dict[StreamId, Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.engine = Engine(model, policy=Policy.EAGER, max_queued=MAX_QUEUED, deliver=self._deliver)

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Run the engine; also the `lifespan` of an application. Can be entered only once."""
        self._loop = asyncio.get_running_loop()
        self.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.engine.stop, STOP_S)

    def open(self, deadline_ms: float) -> Stream:
        """Open a stream; the caller closes it. Raises: EngineDown."""
        stream = Stream(self, deadline_ms / 1000)
        self._streams[stream.number] = stream
        return stream

    def forget(self, stream: StreamId) -> None:
        """Drop a stream that was closed."""
        self._streams.pop(stream, None)

    def _deliver(self, event: EngineEvent) -> None:  # on the engine's thread
        assert self._loop is not None, "the engine starts in `running`"
        self._loop.call_soon_threadsafe(self._receive, event)

    def _receive(self, event: EngineEvent) -> None:
        if isinstance(event, BatchDone):
            self.largest_batch = max(self.largest_batch, len(event.streams))
            for number, output in zip(event.streams, event.outputs, strict=True):
                if stream := self._streams.get(number):
                    stream.answer(output)
        elif isinstance(event, StreamFailed):
            if stream := self._streams.get(event.stream):
                stream.fail(event.error)
        elif isinstance(event, EngineStopped):
            for stream in self._streams.values():
                stream.fail(EngineDown("the engine has stopped"))


class Stream:
    """One user's stream of steps. Used on the event loop alone."""

    def __init__(self, serving: Serving, budget_s: float) -> None:
        self._serving, self._budget_s = serving, budget_s
        self._waiting: deque[tuple[asyncio.Future[Answer], float]] = deque()  # with the deadline, in order of the steps
        self._error: Exception | None = None
        self.number = serving.engine.open(budget_s=budget_s)

    async def step(self, inputs: NDArray[Any], *, reset: bool = False) -> Answer:
        """Queue one step and wait for its answer. Raises: BatchingError, for example PoolFull beyond the capacity."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._serving.engine.push(self.number, inputs, reset=reset)
        self._waiting.append((future, loop.time() + self._budget_s))
        return await future

    def answer(self, output: NDArray[Any]) -> None:
        """Answer the oldest step."""
        future, deadline_s = self._waiting.popleft()
        if not future.done():  # it is where its caller was canceled
            future.set_result(Answer(output, asyncio.get_running_loop().time() > deadline_s))

    def fail(self, error: Exception) -> None:
        """End all steps, waiting and future ones."""
        self._error = error
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Free the slot."""
        self._serving.engine.close(self.number)
        self._serving.forget(self.number)


@asynccontextmanager
async def accepted(connection: WebSocket) -> AsyncIterator[None]:
    """Accept a WebSocket; leave when the client disconnects; close with 1013 when the engine refuses or fails."""
    await connection.accept()
    try:
        yield
    except WebSocketDisconnect:
        return
    except BatchingError as error:
        await connection.close(TRY_AGAIN_LATER, str(error)[:100])


def run(application: Callable[[], FastAPI], client: Callable[[int], Awaitable[None]]) -> None:
    """Run an example's command line: serve, or with --demo run the client against a server of its own."""

    def command(port: Annotated[int, typer.Option(min=0, max=65_535)] = 8090, *, demo: bool = False) -> None:
        """Serve on 127.0.0.1; with --demo run a client on a free port, print what it gets, and exit."""
        listening = socket.create_server(("127.0.0.1", 0 if demo else port))
        server = uvicorn.Server(uvicorn.Config(application(), log_level="warning"))
        typer.echo(f"serving on http://127.0.0.1:{listening.getsockname()[1]}")
        asyncio.run(_serve(server, listening, client if demo else None))

    typer.run(command)


async def _serve(
    server: uvicorn.Server, listening: socket.socket, client: Callable[[int], Awaitable[None]] | None
) -> None:
    """Serve until a signal, or until the client returns; it may connect at once, because the socket listens."""
    port = listening.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    if client is not None:
        finished = asyncio.ensure_future(client(port))
        await asyncio.wait({serving, finished}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        await finished
    await serving
