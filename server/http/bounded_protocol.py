"""uvicorn's HTTP protocol with bounds for clients that pipeline, do not read, or end their side of the connection.

Owns what is written to, and held for, one HTTP connection after its heads. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sized
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_PIPELINED = 64  # requests that wait for the answer to the one before them
PROBE_S = 0.25  # before each look for a client that ended its side and awaits an answer
RESET_S = 0.1  # in which a client that is gone resets the connection; a farther one does so before the next look
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # every client skips it, and one that is gone resets the connection
TOO_MANY = f"More than {MAX_PIPELINED} requests are waiting on this connection. Read their answers first."
CUT_SHORT = "The body is shorter than its Content-Length, or its last chunk is missing."


class TooManyPipelined(Exception):
    """Raised within the parser to stop it; the client gets status 400."""


class PipelineFlow(FlowControl):
    """Flow control that leaves a client unread while requests of it wait: their bodies would be held in memory."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read again, unless requests wait."""
        if not self._waiting:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection. `write_timeout_s` without the client taking a byte of its answers ends it."""

    def __init__(self, *arguments: Any, write_timeout_s: float, **options: Any) -> None:
        """Take what uvicorn gives a protocol besides."""
        super().__init__(*arguments, **options)
        self._write_timeout_s = write_timeout_s
        self._write_timer: asyncio.TimerHandle | None = None  # runs while answers lie unsent
        self._unsent = 0  # bytes when it was armed
        self._probe_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # the request that is answered now; `cycle` is the latest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and tell the request that is answered now; uvicorn tells the latest alone."""
        self.stop_timers()
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()
            self._running = None
        super().connection_lost(exc)

    def stop_timers(self) -> None:
        """Cancel the timers, because the connection ends or gets another protocol."""
        for timer in (self._write_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._write_timer = self._probe_timer = None

    @property
    def answering(self) -> bool:
        """True while a request has not been answered completely, or an answer lies unsent."""
        return (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused

    # Requests that wait

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Begin a request. Raises: TooManyPipelined, which the parser turns into its own error."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise TooManyPipelined
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:
        """Refuse what was sent, and end."""
        super().send_400_response(TOO_MANY if len(self.pipeline) >= MAX_PIPELINED else msg)
        self._bound_end()

    # Clients that send no more

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection of a client that ended its side: an answer is due."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return False
        if cycle.more_body:
            if not self.pipeline and not cycle.response_started:
                self.send_400_response(CUT_SHORT)
            return False
        cycle.keep_alive = False  # the last request: its answer ends the connection
        self._probe_later()
        return True

    def _probe_later(self) -> None:
        self._after(PROBE_S, self._probe)

    def _probe(self) -> None:
        """Write to a client that awaits its answer: nothing else shows whether it has ended both sides."""
        cycle = self.cycle
        if self.pipeline or self.flow.write_paused:
            self._probe_later()
        elif not (cycle.response_started or self.transport.is_closing() or cycle.scope["http_version"] == "1.0"):
            self.transport.write(PROBE)
            self._after(RESET_S, self._look_for_reset)

    def _look_for_reset(self) -> None:
        """End the connection if the client was gone; the event loop does not read any more, and would not notice."""
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._probe_later()

    def _after(self, seconds: float, look: Callable[[], None]) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._probe_timer = self.loop.call_later(seconds, look)

    # Clients that do not read

    def pause_writing(self) -> None:
        """The client does not read: give it a bounded time."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._write_timer is not None and not self.transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None

    def on_response_complete(self) -> None:
        """Go on with the next request, or end."""
        super().on_response_complete()
        self._bound_end()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection."""
        super().timeout_keep_alive_handler()
        self._bound_end()

    def shutdown(self) -> None:
        """End, because the server does."""
        super().shutdown()
        self._bound_end()

    def _bound_end(self) -> None:
        """Closing waits for the client to take what is unsent; bound that wait."""
        if self._write_timer is None and self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._await_reader()

    def _await_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._write_timeout_s, self._look_for_reader)

    def _look_for_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._await_reader()
        else:
            self.transport.abort()
