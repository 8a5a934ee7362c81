"""A small Deepgram-like server whose transcript is a function of the audio, so that tests can compute it.

The transcript is one word per whole 80 ms step, a checksum of that step's bytes: any audio that is lost, doubled or
swapped changes the text. A `Plan` gives each connection its faults.

Run as a program it serves until it is interrupted, to measure what a client costs:
`python -m tests.support.clients.fake_listen 9000`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.support.clients.in_thread import in_thread

STEP_BYTES = 2560
STEP_S = 0.08


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults of one connection; by default none."""

    delay_s: float = 0.0  # before each answer
    refuse: int = 0  # an HTTP status instead of the WebSocket
    garble: bool = False  # one word of the final is wrong
    skip_step: int | None = None  # no answer for this step: the next one covers it
    silent: bool = False  # accepts, and never sends a message
    no_final: bool = False  # Metadata and a normal close without a final
    close_after: int | None = None  # steps, then code 1011
    broken_frame: bool = False  # the first answer is a frame that no server may send
    split: bool = False  # each result holds the parts of its latency


@dataclass(slots=True)
class Seen:
    """The frames of one connection."""

    query: dict[str, list[str]]
    headers: dict[str, str]
    audio: bytearray = field(default_factory=bytearray)
    controls: list[str] = field(default_factory=list)


def text_of(pcm: bytes) -> str:
    """Return the transcript of this audio."""
    whole = len(pcm) // STEP_BYTES
    return " ".join(word_of(pcm[step * STEP_BYTES : (step + 1) * STEP_BYTES]) for step in range(whole))


def word_of(step: bytes) -> str:
    """Return the word of one step."""
    return f"w{zlib.crc32(step) % 1000}"


class FakeListen:
    """The server; `connections` has the frames of each connection, in order of arrival, including refused ones."""

    def __init__(self, plan: Callable[[int], Plan] = lambda _: Plan()) -> None:
        self._plan = plan
        self.connections: list[Seen] = []
        self.rows = 0.0
        self.batches = 0.0
        self.port = 0
        self.received: asyncio.Queue[str] = asyncio.Queue()  # control messages, of all connections
        self.gone: asyncio.Queue[int | None] = asyncio.Queue()  # the close code of each connection that ended

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"ws://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeListen]:
        """Serve on a free loopback port."""
        async with serve(self._talk, "127.0.0.1", port, compression=None, process_request=self._admit) as server:
            self.port = int(next(iter(server.sockets)).getsockname()[1])
            yield self

    def in_thread(self) -> AbstractContextManager[FakeListen]:
        """Serve from a thread with its own event loop, for callers with another one."""
        return in_thread(self.running())

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        parts = urlsplit(request.path)
        if parts.path == "/metrics":
            text = f"tutti_batches_total {self.batches}\ntutti_batch_rows_total {self.rows}\n"
            return connection.respond(HTTPStatus.OK, text)
        plan = self._plan(len(self.connections))
        connection.plan = plan
        connection.seen = Seen(
            parse_qs(parts.query), {name.lower(): value for name, value in request.headers.raw_items()}
        )
        self.connections.append(connection.seen)
        if not plan.refuse:
            return None
        response = connection.respond(HTTPStatus(plan.refuse), '{"err_code":"X","err_msg":"no room"}')
        response.headers["Retry-After"] = "2"
        return response

    async def _talk(self, connection: ServerConnection) -> None:
        stream = _Stream(connection, connection.plan, connection.seen, self)
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                if isinstance(frame, bytes):
                    await stream.audio(frame)
                else:
                    await stream.control(msgspec.json.decode(frame))
        self.gone.put_nowait(connection.close_code)


class _Stream:
    def __init__(self, connection: ServerConnection, plan: Plan, seen: Seen, server: FakeListen) -> None:
        self._connection = connection
        self._plan = plan
        self._seen = seen
        self._server = server
        self._words: list[str] = []
        self._final_s = 0.0

    async def audio(self, frame: bytes) -> None:
        self._seen.audio += frame
        while (len(self._words) + 1) * STEP_BYTES <= len(self._seen.audio):
            first = len(self._words) * STEP_BYTES
            self._words.append(word_of(self._seen.audio[first : first + STEP_BYTES]))
            await self._step(len(self._words) - 1)

    async def control(self, message: dict[str, object]) -> None:
        kind = str(message["type"])
        self._seen.controls.append(kind)
        self._server.received.put_nowait(kind)
        if kind == "Finalize":
            await self._results(is_final=True, from_finalize=True)
        elif kind == "CloseStream" and not self._plan.silent:
            await self._finish()

    async def _step(self, step: int) -> None:
        plan = self._plan
        if plan.close_after is not None and step >= plan.close_after:
            await self._connection.close(1011, "NET-0000 stall")
        if plan.broken_frame:
            self._connection.transport.write(b"\x80\x00")  # continues nothing
        self._server.rows += 2.0
        self._server.batches += 1.0
        if not plan.silent and step != plan.skip_step:
            await self._results(is_final=False)

    async def _results(self, *, is_final: bool, from_finalize: bool = False) -> None:
        if self._plan.delay_s:
            await asyncio.sleep(self._plan.delay_s)
        cursor_s = len(self._seen.audio) / STEP_BYTES * STEP_S if is_final else len(self._words) * STEP_S
        spoken = self._words[round(self._final_s / STEP_S) :]
        if is_final and self._plan.garble:
            spoken = [*spoken[:-1], "garbled"]
        words = [
            {
                "word": word,
                "start": self._final_s + n * STEP_S,
                "end": self._final_s + (n + 1) * STEP_S,
                "confidence": 0.9,
            }
            for n, word in enumerate(spoken)
        ]
        message: dict[str, Any] = {
            "type": "Results",
            "channel_index": [0, 1],
            "start": self._final_s,
            "duration": cursor_s - self._final_s,
            "is_final": is_final,
            "speech_final": is_final,
            "from_finalize": from_finalize,
            "channel": {"alternatives": [{"transcript": " ".join(spoken), "confidence": 0.9, "words": words}]},
            "metadata": {"request_id": "r", "model_info": {}, "model_uuid": "m"},
            "tutti": {"audio_processed_s": cursor_s, "queue_wait_ms": 1.0, "step_ms": 2.0, "decode_ms": 0.5},
        }
        if self._plan.split:
            message["tutti"]["latency"] = {
                "queue_ms": 1.0,
                "step_ms": 2.0,
                "handover_ms": 0.25,
                "decode_ms": 0.5,
                "write_ms": 0.75,
                "batch": 2,
            }
        if is_final:
            self._final_s = cursor_s
        await self._connection.send(msgspec.json.encode(message).decode())

    async def _finish(self) -> None:
        if not self._plan.no_final:
            await self._results(is_final=True)
        await self._connection.send('{"type":"SomethingNew","x":1}')
        await self._connection.send('{"type":"Metadata","request_id":"r","duration":1.0,"channels":1}')
        await self._connection.close(1000)


async def _forever(port: int) -> None:
    async with FakeListen().running(port) as fake:
        print(fake.url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_forever(int(sys.argv[1])))
