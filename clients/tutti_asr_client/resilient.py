"""A live stream that outlives its connections: it reconnects, says again what may be lost, and shows one time line.

Owns the sockets, one after another, and the time. What is sent again and what is told once is `continuity`'s to say,
when and where to try again `retry`'s. Opened by `tutti_asr_client.stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tutti_asr_client.connection_events import (
    AudioLost,
    CaughtUp,
    Connected,
    ConnectionEvents,
    Event,
    TicketRefused,
    Waiting,
)
from tutti_asr_client.continuity import Continuity
from tutti_asr_client.errors import NORMAL_CLOSE, ClientError, ClosedAbnormally
from tutti_asr_client.inbox import Inbox
from tutti_asr_client.live import ABNORMAL_CLOSE, ListenClient
from tutti_asr_client.messages import Message
from tutti_asr_client.retry import Attempts
from tutti_asr_client.send_log import CONTROL_BYTES, PIECE_BYTES

REPLAY_SPEED = 8.0
"""Times real time: a server's share for one of its streams, and a minute's outage is made good in 9 s."""

REPLAY_BURST_S = 2.0
"""Audio that is sent at once, before the pace holds: far below a server's backlog limit."""

KEEP_ALIVE_S = 4.0
"""Servers give a silent stream up after 10 s."""

UNREAD = 512
"""Messages that wait for the caller; then interims are dropped, and at last the connection is no longer read."""

KEEP_ALIVE = '{"type":"KeepAlive"}'

Connect = Callable[[str], contextlib.AbstractAsyncContextManager[ListenClient]]


class ResilientClient:
    """An open stream; iterate over it for messages until the stream's end. Used through `open_stream`."""

    def __init__(
        self,
        stream: Continuity,
        attempts: Attempts,
        connecting: Connect,
        *,
        replay_speed: float = REPLAY_SPEED,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.journey = ConnectionEvents()
        self.request_id: str | None = None
        """The server's name for the present or last connection (`dg-request-id`)."""
        self._stream = stream
        self._attempts = attempts
        self._connect = connecting
        self._speed = replay_speed
        self._on_event = on_event
        self._messages = Inbox(UNREAD)
        self._work = asyncio.Event()  # there is something to send
        self._room = asyncio.Event()  # something was sent, or let go of
        self._first = asyncio.Event()  # the first connection is open, or never will be
        self._client: ListenClient | None = None
        self._lost_at: float | None = None
        self._covered = 0
        self._failure: ClientError | None = None
        self._left = False
        self._running: asyncio.Task[None] | None = None

    # What the caller does

    async def send(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send samples, little-endian, in any quantity; waits while more is unsent than may be held.

        Raises:
            ClientError: the stream has failed for good.
        """
        if self._stream.closing:
            raise ClosedAbnormally(NORMAL_CLOSE, "the stream's end has been said")
        audio = pcm if isinstance(pcm, bytes) else pcm.astype("<i2").tobytes()
        for first in range(0, len(audio), PIECE_BYTES):
            piece = audio[first : first + PIECE_BYTES]
            await self._room_for(len(piece))
            self._stream.add_audio(piece)
            self._work.set()

    async def finalize(self, channel: int | None = None) -> None:
        """Ask for a final of everything sent so far; it is answered once, whatever happens on the way."""
        await self._room_for(CONTROL_BYTES)
        self._stream.finalize(channel)
        self._work.set()

    async def configure(self, keyterms: Sequence[str]) -> None:
        """Replace the key terms for the audio that follows."""
        await self._room_for(CONTROL_BYTES)
        self._stream.configure(keyterms)
        self._work.set()

    async def keep_alive(self) -> None:
        """Nothing: a silent stream is kept alive without being asked."""

    async def close_stream(self) -> None:
        """Say that no audio follows; the last final and `Metadata` come, then the iteration ends."""
        self._stream.close()
        self._work.set()

    def abort(self) -> None:
        """Leave at once and without a word; whoever iterates sees the connection lost."""
        self._left = True
        if self._client is not None:
            self._client.abort()
        if self._running is not None:
            self._running.cancel()

    async def _room_for(self, size: int) -> None:
        while self._failure is None and not self._stream.journal.has_room(size):
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, in the stream's own time; types that are not known are skipped.

        Raises:
            ClientError: the stream cannot go on; see `tutti_asr_client.errors`.
        """
        message = await self._messages.get()
        if message is not None:
            return message
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    # What happens meanwhile

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            ClientError: there is no server to be had.
        """
        self._running = asyncio.create_task(self._run())
        await self._first.wait()
        if self._failure is not None and not self.journey.connections:
            raise self._failure

    async def stop(self) -> None:
        """Leave, with a close where there is a connection."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        try:
            await self._live()
        except ClientError as error:
            self._failure = error
        except asyncio.CancelledError:
            self._failure = ClosedAbnormally(ABNORMAL_CLOSE, "the stream was left")
            if not self._left:
                raise
        finally:
            self._client = None
            self._room.set()
            self._first.set()
            self._messages.end()

    async def _live(self) -> None:
        """One connection after another, until the stream is over."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._connect(self._attempts.url) as client:
                    await self._converse(client)
                break
            except ClientError as error:
                if self._stream.complete:
                    break
                self._lost_at = loop.time() if self._lost_at is None else self._lost_at
                following = self._attempts.failed(error, loop.time())
                self._tell(Waiting(error, following.url, following.wait_s, self._attempts.failures))
            await asyncio.sleep(following.wait_s)
        await self._messages.put(self._stream.farewell(self.request_id or ""))

    async def _converse(self, client: ListenClient) -> None:
        """Use a connection until it ends; returns after a normal end of the stream."""
        loop = asyncio.get_running_loop()
        self._client, self.request_id = client, client.request_id
        self._attempts.connected(loop.time())
        known = _Known(self._stream)
        self._stream.connected()
        self._first.set()
        sender = asyncio.create_task(self._send_all(client))
        sender.add_done_callback(lambda task: None if _failure(task) is None else client.abort())
        try:
            self._took_up(known)
            async for message in client:
                for news in self._stream.receive(message):
                    await self._messages.put(news)
                self._took_up(known)
                self._settled()
        except ClosedAbnormally:
            failure = _failure(sender)
            if failure is not None and not isinstance(failure, ClosedAbnormally):
                raise failure from None  # ours, not the connection's
            self._lost_at = loop.time()
            raise
        finally:
            self._client = None
            self._stream.lost()
            sender.cancel()
            await asyncio.wait({sender})
        if not self._stream.closing:
            raise ClosedAbnormally(NORMAL_CLOSE, "before all audio was sent")

    def _took_up(self, known: _Known) -> None:
        """Tell once how the connection took the stream up; until that is known, nothing is sent."""
        stream = self._stream
        for code in known.new_refusals(stream):
            self._tell(TicketRefused(code))
        if known.begun:
            return
        self._work.set()  # an answer to a ticket calls for something to be said
        if stream.beginning is None:
            return
        known.begun = True
        took_s = 0.0 if self._lost_at is None else asyncio.get_running_loop().time() - self._lost_at
        replay_s = stream.replayed_s - known.replayed_s
        self._tell(Connected(self._attempts.url, self.request_id, stream.beginning, replay_s, took_s))
        if stream.lost_s > known.lost_s:
            self._tell(AudioLost(stream.lost_s - known.lost_s))

    def _settled(self) -> None:
        if self._stream.covered > self._covered:
            self._covered = self._stream.covered
            self._attempts.settled()
            self._room.set()

    def _tell(self, event: Event) -> None:
        self.journey.add(event)
        if self._on_event is not None:
            self._on_event(event)

    async def _send_all(self, client: ListenClient) -> None:
        """Send what there is, whenever there is something: the only writer of a connection."""
        stream, pace = self._stream, _Pace(self._speed)
        while True:
            behind = stream.beginning is not None and stream.replaying
            frame = stream.next_frame()
            if frame is None:
                self._caught_up()
                await self._wait_for_work(client)
                continue
            if behind and isinstance(frame, bytes):
                await pace.hold(stream.shape.seconds(len(frame)))
            await client.send_frame(frame)
            self._room.set()

    def _caught_up(self) -> None:
        if self._lost_at is not None and self._stream.beginning is not None:
            self._tell(CaughtUp(asyncio.get_running_loop().time() - self._lost_at))
            self._lost_at = None

    async def _wait_for_work(self, client: ListenClient) -> None:
        self._work.clear()
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._work.wait()
        except TimeoutError:
            await client.send_frame(KEEP_ALIVE)


class _Known:
    """What the stream's sums were when a connection began."""

    def __init__(self, stream: Continuity) -> None:
        self.begun = False
        self.replayed_s = stream.replayed_s
        self.lost_s = stream.lost_s
        self._refusals = len(stream.refusals)

    def new_refusals(self, stream: Continuity) -> list[str]:
        codes = stream.refusals[self._refusals :]
        self._refusals = len(stream.refusals)
        return codes


class _Pace:
    """Holds replayed audio to so many times real time."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._sent_s = 0.0
        self._began_s: float | None = None

    async def hold(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now
        self._sent_s += seconds
        due = self._began_s + (self._sent_s - REPLAY_BURST_S) / self._speed
        if due > now:
            await asyncio.sleep(due - now)


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    """Why it failed; None if it did not, or not yet."""
    return task.exception() if task.done() and not task.cancelled() else None
