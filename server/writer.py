"""The writing half of one connection: takes frames at any time, writes them in order, cuts who will not read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from server.errors import Close
from server.metrics import Metrics
from server.outbox import FrameKind, Outbox, OutFrame
from server.protocol import ABORT_EXTENSION

OUTBOX_FRAMES = 256  # 20 s of answers to every step


class Writer:
    """One coroutine over one outbox."""

    def __init__(self, socket: WebSocket, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._socket = socket
        self._metrics = metrics
        self._clock = clock
        self._outbox = Outbox(OUTBOX_FRAMES)
        self._writing_since_s: float | None = None
        self.worst_latency_s = 0.0

    @property
    def dropped(self) -> int:
        """Interims that were never written, because the client did not read."""
        return self._outbox.dropped

    def waiting_since(self, now: float) -> float:
        """When the frame that the client is not taking was begun; `now` if there is none."""
        return now if self._writing_since_s is None else self._writing_since_s

    def put(self, frame: OutFrame) -> bool:
        """Queue a frame; return False if the client has left too much unread."""
        return self._outbox.put(frame)

    def end(self, close: Close) -> None:
        """Close the connection behind what is queued."""
        self._outbox.end(close)

    def abort(self) -> None:
        """Cut the connection, and drop what is not written yet."""
        extension = self._socket.scope["extensions"].get(ABORT_EXTENSION)
        if extension is not None:
            extension["abort"]()

    async def run(self) -> None:
        """Write until the connection ends, by our close or by the client's going."""
        try:
            while True:
                frame = await self._outbox.next()
                if isinstance(frame, Close):
                    await self._socket.close(frame.code, frame.reason)
                    return
                self._writing_since_s = self._clock()
                await self._socket.send({"type": "websocket.send", "text": frame.payload.decode()})
                self._writing_since_s = None
                self._written(frame)
        except (WebSocketDisconnect, RuntimeError):
            return  # gone, or failing below us; the reader learns of it too, and ends the rest

    def _written(self, frame: OutFrame) -> None:
        if frame.kind is FrameKind.OTHER:
            return
        self._metrics.results[frame.kind].inc()
        if frame.arrived_s is not None:
            latency_s = self._clock() - frame.arrived_s
            self.worst_latency_s = max(self.worst_latency_s, latency_s)
            self._metrics.result_latency[frame.kind].observe(latency_s)
            if frame.flushed:
                self._metrics.finalize_latency.observe(latency_s)
