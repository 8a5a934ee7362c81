"""uvicorn's WebSocket protocol without tasks and queues: passes complete messages to a receiver, and frames to the
transport.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import TimerHandle
from asyncio.transports import BaseTransport
from typing import Any, cast

from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State

from server.streaming.client_timer import ClientTimer
from server.streaming.pings import LINGER_S, PingedWebSocket
from server.streaming.transport import TRANSPORT_EXTENSION, MessageLimit, MessageReceiver

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build without its C extension
    from websockets.utils import apply_mask

SEND_BUFFER_BYTES = 256 * 1024  # about a minute of results; by default Linux grows it to over 4 MiB
FRAMES_PER_CALL = 64  # about 2 ms of tiny frames; a single read may hold 43,000, which take a second
# Source of the frame headers: RFC 6455, section 5.2.
WHOLE_TEXT = b"\x81"  # FIN, no extension bits, opcode 1
WHOLE_BINARY = 0x82  # FIN, no extension bits, opcode 2
SHORT, LONG = 126, 1 << 16  # payload sizes from which the header has two, or eight, more bytes
MASKED = 0x80
MASK_BYTES = 4
LENGTH_16_BIT, LENGTH_64_BIT = 126, 127  # markers: the length follows in two, or in eight bytes
Head = tuple[bytes, list[tuple[bytes, bytes]]]
"""Target and headers of a request."""


class StreamWebSocket(PingedWebSocket):
    """uvicorn's WebSocket protocol class; implements `server.streaming.transport.Transport`."""

    _receiver: MessageReceiver | None = None
    _extensions: dict[str, object] | None = None  # of the ASGI scope; contains this object
    _too_large: bytes | None = None  # text message sent before the close after a too large message
    _unread, _at = b"", 0  # received data, and the offset of the unparsed part
    _half_closed = False  # the client sends nothing more, and may read
    _left = 0  # bytes that websockets still needs of the frame it is parsing
    _between = False  # a receiver is attached, and the next byte begins a message of an open connection
    _next_call: asyncio.Handle | None = None  # parses the remaining frames; reading is paused until it runs
    _least = 1  # bytes from which on the socket is read

    def __init__(self, *arguments: Any, head: Head | None = None, **options: Any) -> None:
        """`head`: that of the handshake if it is not in its data, since websockets reads 8 KiB of a line."""
        super().__init__(*arguments, **options)
        self._head = head

    # Called by the event loop's transport

    def connection_made(self, transport: BaseTransport) -> None:
        """Limit the kernel's send buffer, for clients that do not read."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, notify the receiver, and break reference cycles."""
        for handle in (self._linger, self._next_call):
            if handle is not None:
                handle.cancel()
        super().connection_lost(exc)
        self._deliver()
        # Cycles through these three would keep the connection until the next garbage collection.
        self._receiver, self._between = None, False
        self.conn.parser.close()  # a generator that refers to `conn`
        if self._extensions is not None:
            self._extensions.pop(TRANSPORT_EXTENSION, None)

    def shutdown(self) -> None:
        """Close because the server shuts down."""
        super().shutdown()
        self._between = False
        self._bound_end()
        self._deliver()

    def pause_writing(self) -> None:
        """Called when the client does not read."""
        super().pause_writing()
        self.congested = True

    def resume_writing(self) -> None:
        """Called when the client reads again."""
        super().resume_writing()
        self.congested = False
        self._write_pong()
        if self._receiver is not None:
            self._receiver.on_writable()

    def data_received(self, data: bytes) -> None:
        """Parse at most `FRAMES_PER_CALL` frames now, and the rest in later iterations of the event loop."""
        if self._between and not (self._unread or self.close_sent):
            frame = audio_frame(data, 0)
            if frame is not None and frame[1] == len(data):  # most reads hold one whole message
                self._receiver.on_message(frame[0])  # type: ignore[union-attr]  # attached
                return
        self._unread = self._unread[self._at :] + data if self._unread else data
        self._at = 0
        if self._next_call is None:
            self._read_frames()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a client that half-closes it while the results of its ended stream are due."""
        self._half_closed = True
        return self._next_call is not None or self._results_due

    @property
    def _results_due(self) -> bool:
        return self._receiver is not None and self._receiver.flushing and not self.close_sent

    def _read_frames(self) -> None:
        waited, self._next_call = self._next_call is not None, None
        for _ in range(FRAMES_PER_CALL):
            if not self._read_frame():
                break
        else:
            if self._at < len(self._unread) and not self.transport.is_closing():
                self._next_call = self.loop.call_soon(self._read_frames)
                self.transport.pause_reading()
                return
        if self._at == len(self._unread):
            self._unread, self._at = b"", 0
        if waited:
            self._receive_more()
        if self._half_closed and not self._results_due:
            self.transport.close()

    def _read_frame(self) -> bool:
        """Parse the next complete audio frame here; leave others to websockets. Return False if nothing was parsed.

        An incomplete frame is left to websockets, too, once its header is complete.
        """
        data, at = self._unread, self._at
        if self._between and not self.close_sent:
            frame = audio_frame(data, at)
            if frame is not None:
                payload, self._at = frame
                self._receiver.on_message(payload)  # type: ignore[union-attr]  # attached
                return True
        if not self._left:
            self._left = frame_size(data, at) if self._parses_frames else len(data) - at
        piece = data[at : at + self._left]
        if not piece:
            return False
        self._at += len(piece)
        self._left -= len(piece)
        super().data_received(piece)
        self._find_place()
        self._deliver()
        return True

    @property
    def _parses_frames(self) -> bool:
        """False before the handshake's headers, and while websockets discards what the client still sends."""
        return self.handshake_initiated and not self._failed and self.conn.close_rcvd is None

    def _receive_more(self) -> None:
        """Let the transport read, unless the receiver has paused it or frames are waiting."""
        held = self.read_paused if self._receiver is None else not self._reading
        if self._next_call is None and not held and not self.transport.is_closing():
            self.transport.resume_reading()

    def _find_place(self) -> None:
        """Find out whether the next byte begins a message, after websockets has parsed others."""
        conn = self.conn
        parsed = not (self._left or conn.reader.buffer) and conn.current_size is None
        self._between = self._receiver is not None and parsed and conn.state is State.OPEN

    def _deliver(self) -> None:
        """Deliver the messages that uvicorn has queued for the ASGI application."""
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
        """Put this transport into the application's scope before its task runs."""
        target, headers = self._head or (event.path.encode(), None)
        event.path = target.decode("ascii")
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["headers"] = headers or self.scope["headers"]
            self._extensions = cast(dict[str, object], self.scope["extensions"])
            self._extensions[TRANSPORT_EXTENSION] = self

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message. Invalid UTF-8 ends the connection, without the traceback that uvicorn would log."""
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
        """Send the close frame, and discard what the client still sends: closing with unread data would reset the
        connection, and the client might not receive the reason.
        """
        closed = self.conn.close_sent
        if closed is None:
            self._leave()
            return
        if self._linger is not None:
            return
        if closed.code == CloseCode.MESSAGE_TOO_BIG and self._too_large is not None:
            self.write(self._too_large)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closed.code, "reason": closed.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._failed = True
        self._await_end()
        if self.transport.can_write_eof() and not self._half_closed:  # else it is closing
            self.transport.write_eof()

    def _leave(self) -> None:
        """Drop the connection of a client that failed it, or closed it, before the handshake's response."""
        self.handshake_complete = self.disconnected = True  # nothing more can be sent
        self.abort()

    def handle_cont(self, event: Frame) -> None:
        """Join fragments on arrival: a list of tiny fragments would take fifty times the memory of their bytes."""
        if not isinstance(self.frames[0], bytearray):
            self.frames = [cast(bytes, bytearray(self.frames[0]))]
        self.frames[0] += event.data
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    def handle_close(self, event: Frame) -> None:
        """Answer the client's close frame, and wait at most `LINGER_S` for it to read unsent data."""
        if not self.handshake_complete:
            self._leave()
            return
        super().handle_close(event)
        self._bound_end()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Called after the application has returned and uvicorn has closed the transport."""
        super().on_task_complete(task)
        self._bound_end()

    async def send(self, message: Any) -> None:
        """Send, and mark a refused handshake as complete."""
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._write_pong()
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # else uvicorn 0.54 logs an error for each refused handshake

    def attach(self, receiver: MessageReceiver) -> None:
        """Deliver messages to this receiver from now on."""
        assert not self.conn.extensions, "frames are written without extensions"
        self._receiver = receiver
        self._find_place()
        self._receive_more()
        self.read_paused = True  # keeps uvicorn from pausing at each message: the receiver decides
        self._deliver()

    def limit_messages(self, limit: MessageLimit) -> None:
        """Set a message limit other than the server's configuration."""
        self.conn.max_message_size = limit.max_bytes
        self._too_large = limit.refusal

    def write(self, payload: bytes) -> None:
        """Write a text message."""
        if self.close_sent or self.transport.is_closing():
            return
        self.transport.write(text_frame(payload))

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake, with a time limit."""
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._await_end()
        if self._receiver is not None:
            self._receiver.on_gone()

    def _await_end(self) -> None:
        """Read until the client closes, with a time limit."""
        if self._half_closed:
            self.transport.close()
            self._bound_end()
            return
        self._reading = True
        self._receive_more()
        self.read_at_least(1)
        self.close_timer = cast(TimerHandle, ClientTimer(self.loop, self.close_timeout, self.transport.close))
        # uvicorn's own timer waits for the write buffer to empty; this one does not.
        self._linger = ClientTimer(self.loop, LINGER_S, self.abort)

    def abort(self) -> None:
        """Drop the connection and all unsent data."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._reading = False
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def read_at_least(self, count: int) -> None:
        """Leave fewer bytes than this to the kernel, less those that are read and not parsed."""
        count = 1 if self._left else max(count + self._at - len(self._unread), 1)
        if count != self._least and not self.transport.is_closing():
            self._least = count
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def resume_reading(self) -> None:
        """Resume reading; the time limit of a pending ping starts anew."""
        if not self._reading and self.pong_timer is not None:
            self.pong_timer.cancel()
            self._await_pong()
        self._reading = True
        self._receive_more()


def text_frame(payload: bytes) -> bytes:
    """Return an unfragmented, unmasked text message; `payload` is UTF-8."""
    size = len(payload)
    if size < SHORT:
        head = size.to_bytes(1, "big")
    elif size < LONG:
        head = b"\x7e" + size.to_bytes(2, "big")
    else:
        head = b"\x7f" + size.to_bytes(8, "big")
    return b"".join((WHOLE_TEXT, head, payload))


def frame_size(data: bytes, at: int) -> int:
    """Return the size of the frame that starts at `at`, header included; 0 if the header is incomplete."""
    if len(data) - at < 2:
        return 0
    size, head = data[at + 1] & ~MASKED, at + 2
    wide = {LENGTH_16_BIT: 2, LENGTH_64_BIT: 8}.get(size, 0)
    if len(data) < head + wide:
        return 0
    if wide:
        size = int.from_bytes(data[head : head + wide], "big")
    return 2 + wide + (MASK_BYTES if data[at + 1] & MASKED else 0) + size


def audio_frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the unmasked payload, a copy, of the frame that starts at `at`, and the offset of the next frame.

    None unless it is a complete, masked, unfragmented binary frame of less than 64 KiB.
    """
    if len(data) - at < 2 + MASK_BYTES or data[at] != WHOLE_BINARY or not data[at + 1] & MASKED:
        return None
    size, start = data[at + 1] & ~MASKED, at + 2 + MASK_BYTES
    if size == LENGTH_16_BIT:
        size, start = data[at + 2] << 8 | data[at + 3], start + 2
    elif size == LENGTH_64_BIT:
        return None
    if len(data) < start + size:
        return None
    return apply_mask(data[start : start + size], data[start - MASK_BYTES : start]), start + size
