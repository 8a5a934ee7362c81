"""A live stream that survives lost connections: reconnects, replays audio, and delivers each message once.

Owns the connections, one at a time, their tasks and timers. `continuity` decides which audio is sent again and which
messages are new; `retry` decides when and where to connect. Opened by `tutti_asr_client.stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
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
from tutti_asr_client.live import ABNORMAL_CLOSE, Controls, ListenClient
from tutti_asr_client.messages import Message, Results
from tutti_asr_client.retry import Attempts
from tutti_asr_client.send_log import CONTROL_BYTES, PIECE_BYTES

REPLAY_SPEED = 8.0
"""Replay speed as a multiple of real time: a server can afford it, and an outage of a minute is replayed in 9 s."""

REPLAY_BURST_S = 2.0
"""Audio replayed at once, before the speed limit applies: far below a server's backlog limit."""

KEEP_ALIVE_S = 4.0
"""Interval of KeepAlive messages without audio: servers close an idle stream after 10 s."""

UNREAD = 512
"""Messages queued for the caller; when full, interims are dropped, then reading from the connection pauses."""

KEEP_ALIVE = '{"type":"KeepAlive"}'

Connect = Callable[[str], contextlib.AbstractAsyncContextManager[ListenClient]]


class ResilientClient(Controls):
    """An open stream; iterating over it yields messages until the stream ends. Created by `open_stream`.

    Answers to control messages are delivered once, also after reconnecting, and a Rewind reaches finals from before.
    Without a ticket, the terms of contexts in force are sent again with the audio, and hold for 30 s from there.
    """

    def __init__(
        self,
        stream: Continuity,
        attempts: Attempts,
        connect: Connect,
        *,
        replay_speed: float = REPLAY_SPEED,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.events = ConnectionEvents()
        self.request_id: str | None = None
        """The server's id of the current or last connection (`dg-request-id`)."""
        self._stream = stream
        self._attempts = attempts
        self._connect = connect
        self._speed = replay_speed
        self._on_event = on_event
        self._messages = MessageQueue(UNREAD)
        self._to_send = asyncio.Event()  # a frame may be ready to send
        self._room = asyncio.Event()  # the send log may have room
        self._first_attempt_over = asyncio.Event()  # connected, or failed permanently
        self._client: ListenClient | None = None
        self._lost_at: float | None = None
        self._safe_position = 0
        self._failure: Exception | None = None
        self._aborted = False
        self._task: asyncio.Task[None] | None = None

    # Called by the user

    async def send(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send little-endian samples, any number of them; wait while the log of unsent audio is full.

        Raises:
            ClientError: the stream has failed permanently.
        """
        if self._stream.closing:
            raise ClosedAbnormally(NORMAL_CLOSE, "the stream has been closed")
        audio = pcm if isinstance(pcm, bytes) else pcm.astype("<i2").tobytes()
        for first in range(0, len(audio), PIECE_BYTES):
            piece = audio[first : first + PIECE_BYTES]
            await self._room_for(len(piece))
            self._stream.add_audio(piece)
            self._to_send.set()

    async def _control(self, kind: str, channel: int | None = None, **fields: object) -> None:
        await self._room_for(CONTROL_BYTES)
        self._stream.control(kind, channel, **fields)
        self._to_send.set()

    async def keep_alive(self) -> None:
        """Do nothing: the client sends KeepAlive by itself. For compatibility with `ListenClient`."""

    async def close_stream(self) -> None:
        """End the audio; after the last final and `Metadata` the iteration ends."""
        self._stream.close()
        self._to_send.set()

    def abort(self) -> None:
        """Drop the connection without a close; the iteration ends with `ClosedAbnormally`."""
        self._aborted = True
        if self._client is not None:
            self._client.abort()
        if self._task is not None:
            self._task.cancel()

    async def _room_for(self, size: int) -> None:
        while self._failure is None and not self._stream.send_log.has_room(size):
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, with stream times; unknown types are skipped.

        Raises:
            ClientError: the stream cannot continue; see `tutti_asr_client.errors`. Or an error of `on_event`.
        """
        message = await self._messages.get()
        if message is not None:
            return message
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    # Run by tasks

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            ClientError: no connection could be opened.
        """
        self._task = asyncio.create_task(self._run())
        await self._first_attempt_over.wait()
        if self._failure is not None and not self.events.connections:
            raise self._failure

    async def stop(self) -> None:
        """Close the connection, if there is one, and end the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._connect_until_done()
        except Exception as error:  # noqa: BLE001 - also one of `on_event`; the caller gets it from its next call
            self._failure = error
        except asyncio.CancelledError:
            self._failure = ClosedAbnormally(ABNORMAL_CLOSE, "the stream was aborted")
            if not self._aborted:
                raise
        finally:
            self._client = None
            self._room.set()
            self._first_attempt_over.set()
            self._messages.end()

    async def _connect_until_done(self) -> None:
        """Open one connection after another until the stream ends."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._connect(self._attempts.url) as client:
                    await self._use_connection(client)
                break
            except ClientError as error:
                if self._stream.complete:
                    break
                self._lost_at = loop.time() if self._lost_at is None else self._lost_at
                next_try = self._attempts.failed(error, loop.time())
                self._report(Waiting(error, next_try.url, next_try.wait_s, self._attempts.failures))
            await asyncio.sleep(next_try.wait_s)
        await self._messages.put(self._stream.closing_metadata(self.request_id or ""))

    async def _use_connection(self, client: ListenClient) -> None:
        """Use a connection until it ends; return only after a normal end of the stream."""
        loop = asyncio.get_running_loop()
        self._client, self.request_id = client, client.request_id
        self._attempts.connected(loop.time())
        before = _Totals(self._stream)
        self._stream.connected()
        self._first_attempt_over.set()
        sender = asyncio.create_task(self._send_all(client))
        sender.add_done_callback(lambda task: None if error_of(task) is None else client.abort())
        try:
            self._report_beginning(before)
            async for message in client:
                for delivered in self._stream.receive(message):
                    await self._messages.put(delivered)
                self._report_beginning(before)
                self._note_progress()
        except ClosedAbnormally:
            failure = error_of(sender)
            if failure is not None and not isinstance(failure, ClosedAbnormally):
                raise failure from None  # an error in the sender, not a lost connection
            self._lost_at = loop.time()
            raise
        finally:
            self._client = None
            self._stream.lost()
            sender.cancel()
            await asyncio.wait({sender})
        if not self._stream.closing:
            raise ClosedAbnormally(NORMAL_CLOSE, "before all audio was sent")

    def _report_beginning(self, before: _Totals) -> None:
        """Report refused tickets, and once per connection how it continues the stream."""
        stream = self._stream
        for code in before.new_refusals(stream):
            self._report(TicketRefused(code))
        if before.reported:
            return
        self._to_send.set()  # frames can be sent after the answer to a Resume
        if stream.beginning is None:
            return
        before.reported = True
        took_s = 0.0 if self._lost_at is None else asyncio.get_running_loop().time() - self._lost_at
        replay_s = stream.replayed_s - before.replayed_s
        self._report(Connected(self._attempts.url, self.request_id, stream.beginning, replay_s, took_s))
        if stream.lost_s > before.lost_s:
            self._report(AudioLost(stream.lost_s - before.lost_s))

    def _note_progress(self) -> None:
        if self._stream.safe_position > self._safe_position:
            self._safe_position = self._stream.safe_position
            self._attempts.reset_budget()
            self._room.set()

    def _report(self, event: Event) -> None:
        self.events.add(event)
        if self._on_event is not None:
            self._on_event(event)

    async def _send_all(self, client: ListenClient) -> None:
        """Send the stream's frames when they are ready; the only writer of a connection."""
        stream, pace = self._stream, _Pace(self._speed)
        while True:
            replaying = stream.beginning is not None and stream.replaying
            frame = stream.next_frame()
            if frame is None:
                self._report_caught_up()
                await self._wait_for_frame(client)
                continue
            if replaying and isinstance(frame, bytes):
                await pace.hold(stream.shape.seconds(len(frame)))
            await client.send_frame(frame)
            self._room.set()

    def _report_caught_up(self) -> None:
        if self._lost_at is not None and self._stream.beginning is not None:
            self._report(CaughtUp(asyncio.get_running_loop().time() - self._lost_at))
            self._lost_at = None

    async def _wait_for_frame(self, client: ListenClient) -> None:
        self._to_send.clear()
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._to_send.wait()
        except TimeoutError:
            await client.send_frame(KEEP_ALIVE)


class MessageQueue:
    """A bounded queue of messages: when full, interims are dropped first, then the writer waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._ended = False
        self._added = asyncio.Event()
        self._taken = asyncio.Event()

    async def put(self, message: Message) -> None:
        """Add a message; wait until there is room."""
        while len(self._messages) >= self._limit and not self._drop_interim():
            self._taken.clear()
            await self._taken.wait()
        self._messages.append(message)
        self._added.set()

    def _drop_interim(self) -> bool:
        for index, message in enumerate(self._messages):
            if isinstance(message, Results) and not message.is_final:
                del self._messages[index]
                return True
        return False

    def end(self) -> None:
        """Mark the end: no more messages follow."""
        self._ended = True
        self._added.set()

    async def get(self) -> Message | None:
        """Remove and return the oldest message; None after the end."""
        while not self._messages:
            if self._ended:
                return None
            self._added.clear()
            await self._added.wait()
        self._taken.set()
        return self._messages.popleft()


class _Totals:
    """The stream's totals at the start of a connection."""

    def __init__(self, stream: Continuity) -> None:
        self.reported = False
        self.replayed_s = stream.replayed_s
        self.lost_s = stream.lost_s
        self._refusals = len(stream.refusals)

    def new_refusals(self, stream: Continuity) -> list[str]:
        codes = stream.refusals[self._refusals :]
        self._refusals = len(stream.refusals)
        return codes


class _Pace:
    """Limits replayed audio to `speed` times real time."""

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


def error_of(task: asyncio.Task[None]) -> BaseException | None:
    """Return the error of a task that has failed, else None."""
    return task.exception() if task.done() and not task.cancelled() else None
