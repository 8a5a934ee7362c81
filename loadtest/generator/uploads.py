"""Uploads to `/v1/listen` alongside the live streams, with a fixed concurrency.

HTTP requests are written directly to the socket, to save CPU time of the measuring process.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from loadtest.generator.measures import UploadFigures
from loadtest.generator.recordings import Recording
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_client.address import http_url

UPLOAD_S = 60.0
"""Length of an upload's audio: enough to keep a server busy."""

REFUSED_PAUSE_S = 0.5
"""Pause before a refused upload is retried."""


def wav(recordings: Sequence[Recording], seconds: float) -> bytes:
    """Return a WAV file of `seconds` with the recordings, repeated as needed."""
    samples, wanted = bytearray(), round(seconds * SAMPLE_RATE) * 2
    while len(samples) < wanted:
        for recording in recordings:
            samples += b"".join(recording.messages)
    data = bytes(samples[:wanted])
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE * 2, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


class Uploads:
    """Posts the same file in `count` concurrent loops, and counts completed uploads between `start` and `stop`."""

    def __init__(self, url: str, body: bytes, count: int, clock: Callable[[], float], api_key: str | None) -> None:
        parts = urlsplit(http_url(url, "/v1/listen"))
        self._address = parts.hostname or "", parts.port or 80
        key = f"Authorization: Token {api_key}\r\n" if api_key is not None else ""
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{key}"
        self._request = f"{head}Content-Type: audio/wav\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self._count, self._clock = count, clock
        self._tasks: list[asyncio.Task[None]] = []
        self._began_s = 0.0
        self._done = self._refused = self._failed = 0

    def start(self) -> None:
        """Start the loops."""
        self._began_s = self._clock()
        self._tasks = [asyncio.create_task(self._post_over_and_over()) for _ in range(self._count)]

    async def stop(self) -> UploadFigures | None:
        """Stop and cancel uploads in progress; returns None if `count` is 0."""
        seconds = self._clock() - self._began_s
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return None
        await asyncio.wait(self._tasks)
        rate = self._done * UPLOAD_S / seconds if seconds else 0.0
        return UploadFigures(self._count, self._done, self._refused, self._failed, round(rate, 1))

    async def _post_over_and_over(self) -> None:
        while True:
            status = await self._post()
            self._done += status == 200
            self._refused += status in (429, 503)
            self._failed += status not in (200, 429, 503)
            if status != 200:
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _post(self) -> int:
        """Return the status of one upload; 0 without a response."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                writer.write(self._request)
                answer = await reader.read()
                return int(answer.split(b" ", 2)[1])
            finally:
                writer.transport.abort()
        return 0
