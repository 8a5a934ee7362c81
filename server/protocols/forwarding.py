"""Text of telephone calls to a WebSocket of the operator, which this server opens for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from server.errors import Close
from server.protocols.adapter_connection import AdapterConnection
from server.recognition.active_session import ActiveSession
from server.streaming.closing import ConnectionEvent
from server.streaming.flow_control import WRITE_TIMEOUT_S
from server.streaming.outbox import Outbox, OutFrame

UNDELIVERED = Close(1011, "NET-0000 the text cannot be delivered to the forward URL", "error")
LIMIT_FRAMES = 256  # queued while the receiver does not read; interims are dropped first when it is full
OPEN_TIMEOUT_S = 10.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.forwarding")


class Forward:
    """Sender of a call's frames to one URL, in order, from a bounded queue; `put` never blocks."""

    def __init__(self, url: str, request_id: str, failed: Callable[[], None]) -> None:
        """`failed`, a bound method, is called once if the frames cannot be delivered. The reference is weak, to avoid a
        reference cycle with its object.
        """
        self._url = url
        self._request_id = request_id
        self._failed = WeakMethod(failed)
        self._outbox = Outbox(LIMIT_FRAMES)
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, frame: OutFrame) -> bool:
        """Queue a frame; return False if the queue is full."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        self._more.set()
        return self._outbox.put(frame)

    def end(self) -> None:
        """Close the connection after the queued frames."""
        self._outbox.end(Close(1000, "", "completed"))
        self._more.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the queue is sent, then drop the rest."""
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=timeout_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            async with connect(self._url, open_timeout=OPEN_TIMEOUT_S, max_size=2**16, max_queue=1) as socket:
                while True:
                    await self._more.wait()
                    self._more.clear()
                    while self._outbox:
                        entry = self._outbox.take()
                        if isinstance(entry, Close):
                            return
                        await socket.send(entry.payload, text=True)
        except (OSError, TimeoutError, WebSocketException) as error:
            _log.warning("forwarding failed", request_id=self._request_id, error=type(error).__name__)
            if (failed := self._failed()) is not None:
                failed()


class ForwardingStream(AdapterConnection):
    """Connection of a call; its text goes to `forward_url`, or back on the same connection if that is None."""

    def __init__(self, *arguments: Any, forward_url: str | None, request_id: str, **options: Any) -> None:
        super().__init__(*arguments, request_id=request_id, **options)
        self._forward = None if forward_url is None else Forward(forward_url, request_id, self._undelivered)

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection until it ends, then wait for the forwarded text to be sent."""
        await super().run(recognition)
        if self._forward is not None:
            self._forward.end()
            await self._forward.wait(WRITE_TIMEOUT_S)

    def _undelivered(self) -> None:
        self._transition(ConnectionEvent.BROKEN, close=UNDELIVERED)

    def _put(self, frame: OutFrame) -> None:
        if self._forward is None:
            super()._put(frame)
        elif not self._forward.put(frame):
            self._transition(ConnectionEvent.SLOW_CONSUMER)
