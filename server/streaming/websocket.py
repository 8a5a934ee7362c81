"""uvicorn's WebSocket protocol without tasks and queues: whole messages to a receiver, frames to the transport."""

from __future__ import annotations

import asyncio
import socket
from asyncio.transports import BaseTransport
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import State

from server.streaming.transport import TRANSPORT_EXTENSION, MessageLimit, MessageReceiver

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build without its C extension
    from websockets.utils import apply_mask

SEND_BUFFER_BYTES = 256 * 1024  # about a minute of answers; left alone, Linux grows it to 4 MiB and more
LINGER_S = 10.0  # for the client's own close frame, or its end of a connection that failed
WHOLE_TEXT = b"\x81"  # FIN, no extension bits, opcode 1. Source: RFC 6455, section 5.2
SHORT, LONG = 126, 1 << 16  # lengths from which on a frame's header has two, and eight bytes more
WHOLE_BINARY = 0x82  # FIN, no extension bits, opcode 2
MASKED = 0x80
MASK_BYTES = 4
LENGTH_16_BIT, LENGTH_64_BIT = 126, 127  # in place of the length: it follows in two bytes, or in eight


class StreamWebSocket(WebSocketsSansIOProtocol):
    """The WebSocket protocol that uvicorn is configured with; a `server.streaming.transport.Transport`."""

    _linger: asyncio.TimerHandle | None = None
    _receiver: MessageReceiver | None = None
    _extensions: dict[str, object] | None = None  # of the ASGI scope, with this connection in it
    _too_large: bytes | None = None  # written before the close after a message that is too large
    congested = False
    _failed = False  # by what the client sent: nothing is written any more

    # Called by the event loop's transport

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound what the kernel holds for a client that does not read."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer, tell the receiver, and drop every reference that would form a cycle."""
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)
        self._deliver()
        # Cycles with these three would keep the connection until a collection of garbage.
        self._receiver = None
        self.conn.parser.close()  # a generator that refers to `conn`
        if self._extensions is not None:
            self._extensions.pop(TRANSPORT_EXTENSION, None)

    def shutdown(self) -> None:
        """End, because the server does."""
        super().shutdown()
        self._deliver()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self.congested = True

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.congested = False
        if self._receiver is not None:
            self._receiver.on_writable()

    def data_received(self, data: bytes) -> None:
        """Read whole audio frames here; leave all others, and those split between two reads, to websockets."""
        receiver, at = self._receiver, 0
        if receiver is not None and self._between_messages:
            while not self.close_sent and (frame := audio_frame(data, at)) is not None:
                payload, at = frame
                receiver.on_message(payload)
        if at < len(data):
            super().data_received(data[at:] if at else data)
            self._deliver()

    @property
    def _between_messages(self) -> bool:
        conn = self.conn
        return not conn.reader.buffer and conn.current_size is None and conn.state is State.OPEN

    def _deliver(self) -> None:
        """Deliver the messages that uvicorn has queued for an ASGI application."""
        if self._receiver is None:
            return
        while not self.queue.empty():
            message: Any = self.queue.get_nowait()
            if message["type"] == "websocket.receive":
                text = message.get("text")
                self._receiver.on_message(message["bytes"] if text is None else text)
            else:
                self._receiver.on_gone()

    # Called by the application

    def handle_connect(self, event: Request) -> None:
        """Put this transport into the scope of the application, whose task has not begun to run yet."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            self._extensions = cast(dict[str, object], self.scope["extensions"])
            self._extensions[TRANSPORT_EXTENSION] = self

    def send_receive_event_to_app(self) -> None:
        """Take a whole message. Text that is not UTF-8 ends the connection, without the traceback that uvicorn logs."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Say what was wrong, and discard what the client still sends: with data unread, closing would reset the
        connection, and the reason might be lost on the way.
        """
        closed = self.conn.close_sent
        if closed is None:  # it did not wait for the answer to its handshake
            self.abort()
            return
        if self._linger is not None:
            return
        if closed.code == CloseCode.MESSAGE_TOO_BIG and self._too_large is not None:
            self.write(self._too_large)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closed.code, "reason": closed.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._failed = True
        self._await_end()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_ping(self) -> None:
        """Answer a ping, unless what came before it has failed the connection."""
        if not self._failed:
            super().handle_ping()

    async def send(self, message: Any) -> None:
        """Send, and complete a refusal that uvicorn takes for an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # else uvicorn 0.54 logs an error for each refusal

    def attach(self, receiver: MessageReceiver) -> None:
        """Call this receiver from now on."""
        assert not self.conn.extensions, "frames are written as they are"
        self._receiver = receiver
        if self.read_paused:
            self.transport.resume_reading()
        self.read_paused = True  # so that uvicorn does not pause at each message: the receiver decides
        self._deliver()

    def limit_messages(self, limit: MessageLimit) -> None:
        """Take messages of another size than the server's configuration says."""
        self.conn.max_message_size = limit.max_bytes
        self._too_large = limit.refusal

    def write(self, payload: bytes) -> None:
        """Write a text message."""
        if self.close_sent or self.transport.is_closing():
            return
        size = len(payload)
        if size < SHORT:
            head = size.to_bytes(1, "big")
        elif size < LONG:
            head = b"\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x7f" + size.to_bytes(8, "big")
        self.transport.write(b"".join((WHOLE_TEXT, head, payload)))

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake, and bound the time that it may take."""
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._await_end()
        if self._receiver is not None:
            self._receiver.on_gone()

    def _await_end(self) -> None:
        """Read on until the client ends, for a bounded time."""
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        # uvicorn's own timer waits for the write buffer to empty; this one does not.
        self._linger = self.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Drop the connection and all unsent data."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Leave the client's data in the kernel."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()


def audio_frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the payload of the frame that begins at `at`, unmasked in fresh memory, and where the next one begins.

    None where there is no whole, masked, unfragmented binary frame of less than 64 KiB.
    """
    if len(data) - at < 2 or data[at] != WHOLE_BINARY or not data[at + 1] & MASKED:
        return None
    size, head = data[at + 1] & ~MASKED, at + 2
    if size == LENGTH_16_BIT:
        size, head = int.from_bytes(data[head : head + 2], "big"), head + 2
    elif size == LENGTH_64_BIT:
        return None
    start = head + MASK_BYTES
    if len(data) < start + size:
        return None
    return apply_mask(memoryview(data)[start : start + size], data[head:start]), start + size
