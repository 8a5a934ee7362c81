"""The `Transcriber` interface (PCM to messages), and its implementation that streams to a server.

Owns the flow control that keeps a sender from getting far ahead of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import Protocol

from tutti_asr_client.address import QueryValue, listen_url
from tutti_asr_client.connection_events import Event
from tutti_asr_client.errors import NORMAL_CLOSE, ClosedAbnormally
from tutti_asr_client.live import ListenClient, connect
from tutti_asr_client.messages import Message, Results
from tutti_asr_client.resilient import ResilientClient, error_of
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream

AHEAD_S = 2.0
"""Audio sent but not yet covered by a message: 25 steps, far below the server's backlog limit."""

SAMPLE_BYTES = 2


class Transcriber(Protocol):
    """Recognizer of one recording per call; calls may run concurrently."""

    @property
    def sample_rate(self) -> int:
        """Rate in Hz of the PCM that it accepts."""
        ...

    def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Message, None]:
        """Yield the messages for one recording of little-endian int16 mono PCM, until finals cover every sample.

        `pcm` is read as flow control allows; its end is the end of the recording. Closing the generator early releases
        its stream.

        Raises:
            ClientError: the recording could not be transcribed.
        """
        ...


class RemoteTranscriber:
    """A `Transcriber` that opens one stream for each recording.

    Without `retry` a stream ends with its connection; with `retry` or `resumable` it survives lost connections
    (see `tutti_asr_client.stream`), and `url` may be several addresses.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None = None,
        sample_rate: int = 16000,
        ahead_s: float = AHEAD_S,
        retry: Retry | None = None,
        resumable: bool = False,
        on_event: Callable[[Event], None] | None = None,
        **query: QueryValue,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        self._urls = [listen_url(one, {"step_results": True, **query}) for one in urls]
        self._retry = Retry() if resumable and retry is None else retry
        self._resumable = resumable
        self._on_event = on_event
        self._api_key = api_key
        self.sample_rate = sample_rate
        self._ahead_s = ahead_s

    async def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Message, None]:
        """Yield the messages for one recording.

        Raises:
            ClientError: see `tutti_asr_client.errors`.
        """
        async with self._opened() as client:
            window = _Window(self._ahead_s)
            sender = asyncio.create_task(self._send_all(client, pcm, window))
            sender.add_done_callback(lambda task: None if error_of(task) is None else client.abort())
            try:
                async for message in client:
                    if isinstance(message, Results):
                        window.advance(message.cursor_s)
                    yield message
                window.expect_ended()
            except ClosedAbnormally as closed:
                failure = error_of(sender)
                raise closed if failure is None else failure from None
            finally:
                sender.cancel()
                await asyncio.wait({sender})

    def _opened(self) -> contextlib.AbstractAsyncContextManager[ListenClient | ResilientClient]:
        if self._retry is None:
            return connect(self._urls[0], api_key=self._api_key, sample_rate=self.sample_rate)
        return open_stream(
            self._urls,
            api_key=self._api_key,
            sample_rate=self.sample_rate,
            resumable=self._resumable,
            retry=self._retry,
            on_event=self._on_event,
        )

    async def _send_all(
        self, client: ListenClient | ResilientClient, pcm: AsyncIterable[bytes], window: _Window
    ) -> None:
        seconds_per_byte = 1.0 / (SAMPLE_BYTES * self.sample_rate)
        async for message in pcm:
            await window.room_for(len(message) * seconds_per_byte)
            await client.send(message)
        window.ended = True
        await client.close_stream()


class _Window:
    """Limit on a sender: `ahead_s` before the server's results, or real time, whichever is faster.

    Real time keeps the sender going if the server does not answer every step.
    """

    def __init__(self, ahead_s: float) -> None:
        self.ended = False  # all audio was sent
        self._ahead_s = ahead_s
        self._sent_s = 0.0
        self._answered_s = 0.0
        self._moved = asyncio.Event()
        self._began_s = asyncio.get_running_loop().time()

    def expect_ended(self) -> None:
        """Raise ClosedAbnormally if the server closed before all audio was sent."""
        if not self.ended:
            raise ClosedAbnormally(NORMAL_CLOSE, "before all audio was sent")

    def advance(self, cursor_s: float) -> None:
        self._answered_s = max(self._answered_s, cursor_s)
        self._moved.set()

    async def room_for(self, seconds: float) -> None:
        spoken_s = self._began_s + self._sent_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(spoken_s):
                while self._sent_s - self._answered_s > self._ahead_s:
                    self._moved.clear()
                    await self._moved.wait()
        self._sent_s += seconds
