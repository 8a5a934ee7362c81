"""uvicorn's HTTP protocol with limits for clients that pipeline, do not read, or half-close the connection.

Owns the output and the pending requests of one HTTP connection.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Sized
from typing import Any

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserInvalidURLError,
    HttpParserUpgrade,
    HttpRequestParser,
)
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.streaming.client_timer import READ_S, ClientTimer
from server.streaming.flow_control import WRITE_TIMEOUT_S

MAX_PIPELINED = 64  # requests waiting for the response to an earlier one
PROBE_S = 0.25  # before each probe of a client that half-closed the connection and waits for a response
RESET_S = 0.1  # in which a closed client resets the connection; a more distant one does so before the next probe
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"  # ignored by clients; a closed one resets the connection
MAX_URL_BYTES = 2**16 - 1  # that the parser can divide into its parts
TOO_MANY = f"More than {MAX_PIPELINED} requests are waiting on this connection; read their responses first."
CUT_SHORT = "The body is shorter than its Content-Length, or its last chunk is missing."
ABSOLUTE = re.compile(rb"[a-z][a-z0-9+.-]*://[^/?]*", re.IGNORECASE)  # the start of a target as proxies send it
OPEN = re.compile(rb"/+(?:v1|v2|vosk|healthz|readyz|ping|docs)(?:/|$)")  # paths that no proxy has to hide


def plain_target(target: bytes) -> bytes:
    """Return a request's target without scheme and host (RFC 9112, section 3.2.2), those of `OPEN` paths without
    doubled or trailing slashes, which come from base URLs that end in a slash; health checks follow no redirect.
    """
    path, mark, query = target.partition(b"?")
    if scheme := ABSOLUTE.match(path):
        path = path[scheme.end() :] or b"/"
    if OPEN.match(path):
        path = re.sub(rb"//+", b"/", path).rstrip(b"/")
    return path + mark + query


class TooManyPipelined(Exception):
    """Raised inside the parser to stop it; the client gets status 400."""


class PipelineFlow(FlowControl):
    """Flow control that does not read from a client with waiting requests, whose bodies would be held in memory."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Resume reading, unless requests are waiting."""
        if not self._waiting:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection. It is closed if the client reads nothing of a response for `WRITE_TIMEOUT_S`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """`arguments` and `options` are uvicorn's."""
        super().__init__(*arguments, **options)
        self._write_timer: ClientTimer | None = None  # runs while response data is unsent
        self._unsent = 0  # unsent bytes when the timer was started
        self._probe_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # the request being answered; `cycle` is the latest
        self._read = self.url = b""  # what the parser is reading; the target of the latest request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set up flow control for the connection."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and notify the request being answered; uvicorn notifies only the latest."""
        self.stop_timers()
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()
            self._running = None
        super().connection_lost(exc)

    def stop_timers(self) -> None:
        """Cancel the timers when the connection ends or switches its protocol."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._write_timer = self._probe_timer = None

    @property
    def answering(self) -> bool:
        """True while a response is incomplete or unsent."""
        return (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused

    # Waiting requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Begin a request. Raises: TooManyPipelined, which the parser converts to its own error."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise TooManyPipelined
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:
        """Send status 400, with the parser's reason if it has one, and close the connection."""
        stopped = sys.exc_info()[1]
        if len(self.pipeline) >= MAX_PIPELINED:
            msg = TOO_MANY
        elif len(self.url) > MAX_URL_BYTES:
            msg = f"The URL is longer than {MAX_URL_BYTES} bytes."
        elif isinstance(stopped, HttpParserError) and not isinstance(stopped, HttpParserCallbackError):
            advice = "; percent-encode it" if isinstance(stopped, HttpParserInvalidURLError) else ""
            msg = f"Invalid HTTP request: {stopped}{advice}."
        super().send_400_response(msg)
        self._bound_end()

    # Upgrades to other protocols than WebSocket are ignored (RFC 9110, section 7.8). Java's HttpClient asks for h2c in
    # every request. The parser stops after such a head, and would drop the body. Source: Kludex/uvicorn#2722

    def data_received(self, data: bytes) -> None:
        """Parse the data."""
        self._read = data
        super().data_received(data)
        self._read = b""

    def on_headers_complete(self) -> None:
        """Begin to serve the request, unless its head is parsed again."""
        self.url = plain_target(self.url)
        if not self._asks_for_other_protocol():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body, unless its head is parsed again."""
        if not self._asks_for_other_protocol():
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        """Return whether the request asks for a WebSocket, alone or among other protocols, in any number of headers."""
        return b"upgrade" in self._tokens(b"connection") and b"websocket" in self._tokens(b"upgrade")

    def _tokens(self, header: bytes) -> list[bytes]:
        values = b",".join(value for name, value in self.headers if name == header)
        return [token.strip().lower() for token in values.split(b",")]

    def unparsed(self) -> bytes:
        """Return what was read after the head at which the parser stopped; called while its exception is handled."""
        stopped = sys.exc_info()[1]
        assert isinstance(stopped, HttpParserUpgrade)
        return self._read[stopped.args[0] :]

    def _asks_for_other_protocol(self) -> bool:
        parser = self.parser
        return parser.should_upgrade() and parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Parse the head again without `Upgrade`, then what follows it. uvicorn calls this where the parser stopped."""
        if self.parser.get_method() == b"CONNECT":  # a refused tunnel: what follows is not HTTP
            self.flow.pause_reading()
            self.cycle.keep_alive = False
            return
        rest = self.unparsed()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    # Half-closed connections

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep a half-closed connection, because a response is pending."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return False
        if cycle.more_body:
            if not self.pipeline and not cycle.response_started:
                self.send_400_response(CUT_SHORT)
            return False
        cycle.keep_alive = False  # the last request: close the connection after its response
        self._probe_later()
        return True

    def _probe_later(self) -> None:
        self._after(PROBE_S, self._probe)

    def _probe(self) -> None:
        """Write to a client waiting for a response, the only way to detect that it has closed both directions."""
        cycle = self.cycle
        if self.pipeline or self.flow.write_paused:
            self._probe_later()
        elif not (cycle.response_started or self.transport.is_closing() or cycle.scope["http_version"] == "1.0"):
            self.transport.write(PROBE)
            self._after(RESET_S, self._look_for_reset)

    def _look_for_reset(self) -> None:
        """Abort the connection if the client has reset it; the event loop no longer reads and would not notice."""
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
        """Start the write timeout: the client does not read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Stop the write timeout: the client reads again."""
        super().resume_writing()
        if self._write_timer is not None and not self.transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None

    def on_response_complete(self) -> None:
        """Continue with the next request, or close."""
        super().on_response_complete()
        self._bound_end()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless what is read now begins a request."""
        self.timeout_keep_alive_task = self.loop.call_later(READ_S, self._close_idle)

    def _close_idle(self) -> None:
        super().timeout_keep_alive_handler()
        self._bound_end()

    def shutdown(self) -> None:
        """Close the connection at server shutdown."""
        super().shutdown()
        self._bound_end()

    def _bound_end(self) -> None:
        """Limit the time that closing waits for the client to read unsent data."""
        if self._write_timer is None and self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._await_reader()

    def _await_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._write_timer = ClientTimer(self.loop, WRITE_TIMEOUT_S, self._look_for_reader)

    def _look_for_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._await_reader()
        else:
            self.transport.abort()
