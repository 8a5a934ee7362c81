"""Streams over plain TCP, without HTTP: a connection whose messages open streams, one after the other.

Each stream is served by an ASGI application as if it had come as a WebSocket, so that admission, limits, logs and
metrics are those of all protocols; the connection is its transport (`server.streaming.transport`). Subclasses cut bytes
into messages, and say when a stream begins and ends. A message is not read before the last one is handled: reading
pauses during an admission, while the last results of a stream are due, and while its audio is ahead of the engine.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from enum import Enum, auto
from typing import Any, Generic, TypeVar, cast

import structlog
from starlette.types import ASGIApp, Message, Scope
from starlette.websockets import WebSocket

from server.errors import BadFrame
from server.streaming.client_timer import ClientTimer
from server.streaming.pings import LINGER_S
from server.streaming.transport import TRANSPORT_EXTENSION, MessageLimit, MessageReceiver
from server.streaming.websocket import FRAMES_PER_CALL, SEND_BUFFER_BYTES

QUIET_S = 60.0  # between two streams of a connection
ASKED = "tutti.asked"  # key in the ASGI scope of a stream: what its client asked for
NORMAL = 1000  # close code of a stream whose client asked for its end
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.tcp")
T = TypeVar("T")


class Phase(Enum):
    """State of a connection: which of its messages are read."""

    IDLE = auto()  # all: no stream is open
    OPENING = auto()  # none: a stream waits for its admission
    STREAMING = auto()  # all, as far as the engine keeps up
    ENDING = auto()  # none: the last results are due
    CLOSING = auto()  # what the client still sends is discarded


def asked_of(socket: WebSocket) -> Any:
    """Return what the client of a stream asked for, as `StreamSocket.open` was given it."""
    return socket.scope[ASKED]


class StreamSocket(asyncio.Protocol, Generic[T]):
    """One connection; implements `server.streaming.transport.Transport` for its open stream."""

    path: str  # of its streams in the logs
    one_stream = False  # close after the first stream

    def __init__(self, app: ASGIApp, connections: set[Any]) -> None:
        """`app` serves its streams; while it is open it is one of `connections`."""
        self._app = app
        self._connections = connections
        self._received = bytearray()
        self._needed = 1  # bytes without which the next message is incomplete
        self._phase = Phase.IDLE
        self._paused = False  # by the stream
        self._next_call: asyncio.Handle | None = None
        self._linger: ClientTimer | None = None
        self._task: asyncio.Task[None] | None = None
        self._extensions: dict[str, object] = {}
        self._lost = False
        self.receiver: MessageReceiver | None = None  # of the open stream
        self.congested = False

    # Of a protocol

    @abstractmethod
    def parse(self, received: bytearray) -> tuple[T, int] | int:
        """Return the next message and its size, or the size without which it is incomplete. Raises: BadFrame."""

    @abstractmethod
    def handle(self, message: T) -> bool:
        """Handle a message; return False to have it handled again once the stream is admitted or dropped.

        Raises: BadFrame.
        """

    @abstractmethod
    def failure(self, code: int, why: str) -> bytes:
        """Return the last bytes of a connection that ends because of an error; `code` is that of a WebSocket."""

    def handle_end(self) -> bool:
        """Handle the end of what the client sends, after its messages; return whether to keep the connection.

        A client that is owed results is not read, so its end comes after them.
        """
        return False

    def open(self, request: object) -> None:
        """Begin a stream: no message is read until it is admitted."""
        self._phase = Phase.OPENING
        self._extensions = {TRANSPORT_EXTENSION: self, "websocket.http.response": {}}
        scope: Scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": self.path,
            "endpoint": self.path,  # it is known: the access log names it
            "query_string": b"",
            "headers": [],
            "subprotocols": [],
            "client": self._client,
            "extensions": self._extensions,
            ASKED: request,
        }
        self._task = asyncio.get_running_loop().create_task(self._serve(scope))

    def finish(self, last: str) -> None:
        """Send the stream its last message: no other is read until its results are written."""
        self._phase = Phase.ENDING
        self.deliver(last)

    def drop(self) -> None:
        """End the open stream without its results, as if its client had gone."""
        self._phase = Phase.ENDING
        receiver, self.receiver = self.receiver, None
        assert receiver is not None, "a stream is open"
        receiver.on_gone()

    @property
    def is_open(self) -> bool:
        """Whether a stream is open for messages."""
        return self._phase is Phase.STREAMING

    @property
    def expects_messages(self) -> bool:
        """Whether a stream is open, or about to be."""
        return self._phase in (Phase.OPENING, Phase.STREAMING)

    def deliver(self, message: bytes | str) -> None:
        """Give the open stream a message."""
        assert self.receiver is not None, "a stream is open"
        self.receiver.on_message(message)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._client = transport.get_extra_info("peername")[:2]
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._connections.add(self)
        self._quiet = ClientTimer(self._loop, QUIET_S, self._end_quiet)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Cancel the timers, and notify the stream."""
        self._lost = True
        self._connections.discard(self)
        for timer in (self._quiet, self._linger, self._next_call):
            if timer is not None:
                timer.cancel()
        self._extensions.pop(TRANSPORT_EXTENSION, None)
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_gone()

    def eof_received(self) -> bool:
        """Close, unless the protocol still has results to give."""
        return self._phase is not Phase.CLOSING and self.handle_end()

    def pause_writing(self) -> None:
        """Called when the client does not read."""
        self.congested = True

    def resume_writing(self) -> None:
        """Called when the client reads again."""
        self.congested = False
        if self.receiver is not None:
            self.receiver.on_writable()
        self._read_on()

    def data_received(self, data: bytes) -> None:
        """Handle at most `FRAMES_PER_CALL` messages now, and the rest in later iterations of the event loop."""
        if self._phase is Phase.CLOSING:
            return
        self._received += data
        if self._next_call is None and len(self._received) >= self._needed:
            self._read_messages()

    def shutdown(self) -> None:
        """Close because the server shuts down."""
        self._close()

    # Messages

    @property
    def _reads(self) -> bool:
        """Whether the next message may be handled: not while the client does not read the answers to the last ones."""
        if self._phase is Phase.STREAMING:
            return not (self._paused or self.congested)
        return self._phase is Phase.IDLE and not self.congested

    def _read_messages(self) -> None:
        self._next_call = None
        try:
            for _ in range(FRAMES_PER_CALL):
                if not (self._reads and self._read_message()):
                    break
            else:
                self._next_call = self._loop.call_soon(self._read_messages)
        except BadFrame as error:
            _log.info("invalid message", path=self.path, reason=str(error))
            self.end(self.failure(1008, str(error)))
        if self._transport.is_closing():
            return
        if self._phase is Phase.CLOSING or (self._next_call is None and self._reads):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _read_message(self) -> bool:
        """Handle the next message; return False if it is incomplete, or must be handled later. Raises: BadFrame."""
        parsed = self.parse(self._received)
        if isinstance(parsed, int):
            self._needed = parsed
            return False
        message, size = parsed
        if not self.handle(message):
            self._needed = 1
            return False
        del self._received[:size]
        self._needed = 1
        if self._phase is Phase.IDLE:
            self._restart_quiet()
        return bool(self._received)

    def _read_on(self) -> None:
        """Handle what has arrived, soon, if it may be handled now."""
        if self._next_call is None and self._reads and not self._lost:
            self._next_call = self._loop.call_soon(self._read_messages)

    # The end

    def end(self, last: bytes) -> None:
        """Write the last bytes, then discard what the client sends until it closes, for at most `LINGER_S`.

        Closing with unread data would reset the connection, and the client might not receive the reason.
        """
        if self._phase is Phase.CLOSING or self._transport.is_closing():
            return
        self._phase = Phase.CLOSING
        self._received.clear()
        self._transport.write(last)
        self._transport.write_eof()
        self._transport.resume_reading()
        self._linger = ClientTimer(self._loop, LINGER_S, self._transport.abort)

    def _close(self) -> None:
        """Close after what was written; abort after `LINGER_S` if the client does not read it."""
        self._phase = Phase.CLOSING
        self._transport.close()
        if self._linger is None and self._transport.get_write_buffer_size():
            self._linger = ClientTimer(self._loop, LINGER_S, self._transport.abort)

    def _restart_quiet(self) -> None:
        self._quiet.cancel()
        self._quiet.start(QUIET_S, self._end_quiet)

    def _end_quiet(self) -> None:
        """Close a connection on which no stream is open."""
        if self._phase is Phase.IDLE:
            self._close()

    # The stream's ASGI server

    async def _serve(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - a defect ends one connection
            _log.error("a stream failed", exc_info=error)
            self._transport.abort()
            return
        self.receiver = None
        if self._phase is Phase.CLOSING or self._lost:
            return
        if self.one_stream:
            self._close()
        else:
            self._phase, self._paused = Phase.IDLE, False
            self._restart_quiet()
            self._read_on()

    async def _receive(self) -> Message:
        """Return the handshake; what follows it goes to the receiver."""
        return {"type": "websocket.connect"}

    async def _send(self, message: Message) -> None:
        """Answer a refusal, whose body is what the protocol sends for it."""
        if message["type"] == "websocket.http.response.body" and not self._lost:
            self.end(message["body"])

    # Transport of the open stream

    def attach(self, receiver: MessageReceiver) -> None:
        """Deliver messages to this receiver from now on."""
        if self._lost or self._phase is not Phase.OPENING:
            receiver.on_gone()
            return
        self._phase = Phase.STREAMING
        self.receiver = receiver
        self._read_on()

    def limit_messages(self, limit: MessageLimit) -> None:
        """Do nothing: the protocol limits its messages."""

    def write(self, payload: bytes) -> None:
        """Write bytes as the protocol has made them; ignored once the connection ends."""
        if self._phase is not Phase.CLOSING and not self._transport.is_closing():
            self._transport.write(payload)

    def close(self, code: int, reason: str) -> None:
        """End the stream; unless its client asked for that, the connection ends, too, with the reason."""
        receiver, self.receiver = self.receiver, None
        if code == NORMAL:
            self._phase = Phase.ENDING
        else:
            self.end(self.failure(code, reason))
        if receiver is not None:
            receiver.on_gone()

    def abort(self) -> None:
        """Drop the connection and all unsent data."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stop handling messages."""
        self._paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Handle messages again; in the last state only to detect the end of the connection."""
        self._paused = False
        self._read_on()

    def read_at_least(self, count: int) -> None:
        """Read all at once: the length of a message is not that of its audio."""
