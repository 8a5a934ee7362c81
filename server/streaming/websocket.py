"""uvicorn's WebSocket protocol without tasks and queues: whole messages to a receiver, frames to the transport."""

from __future__ import annotations

import asyncio
import socket
from asyncio.transports import BaseTransport
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State

from server.streaming.frames import WHOLE_PONG, audio_frame, frame_size, text_frame
from server.streaming.transport import TRANSPORT_EXTENSION, MessageLimit, MessageReceiver

SEND_BUFFER_BYTES = 256 * 1024  # about a minute of answers; left alone, Linux grows it to 4 MiB and more
LINGER_S = 10.0  # for the client's own close frame, its end of a connection that failed, or to take what is unsent
FRAMES_A_TURN = 64  # of one connection, about 2 ms of tiny ones: a read may hold 43,000, which take a second


class StreamWebSocket(WebSocketsSansIOProtocol):
    """The WebSocket protocol that uvicorn is configured with; a `server.streaming.transport.Transport`."""

    _linger: asyncio.TimerHandle | None = None
    _receiver: MessageReceiver | None = None
    _extensions: dict[str, object] | None = None  # of the ASGI scope, with this connection in it
    _too_large: bytes | None = None  # written before the close after a message that is too large
    congested = False
    _reading = True  # False while the receiver leaves the client's data in the kernel
    _failed = False  # by what the client sent: nothing is written any more
    _unread, _at = b"", 0  # what was received, and from where on it was not looked at yet
    _left = 0  # bytes that websockets still needs of the frame that it has begun to read
    _turn: asyncio.Handle | None = None  # the rest is read when it runs; nothing more is received until then
    _pong: bytes | None = None  # the answer to the latest ping, while it cannot be written

    # Called by the event loop's transport

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound what the kernel holds for a client that does not read."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, tell the receiver, and drop every reference that would form a cycle."""
        for handle in (self._linger, self._turn):
            if handle is not None:
                handle.cancel()
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
        self._bound_end()
        self._deliver()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self.congested = True

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.congested = False
        self._write_pong()
        if self._receiver is not None:
            self._receiver.on_writable()

    def data_received(self, data: bytes) -> None:
        """Read a bounded number of frames now and the others in later turns of the event loop, before more data."""
        self._unread = self._unread[self._at :] + data if self._unread else data
        self._at = 0
        if self._turn is None:
            self._read_frames()

    def _read_frames(self) -> None:
        waited, self._turn = self._turn is not None, None
        for _ in range(FRAMES_A_TURN):
            if not self._read_frame():
                break
        else:
            if self._at < len(self._unread) and not self.transport.is_closing():
                self._turn = self.loop.call_soon(self._read_frames)
                self.transport.pause_reading()
                return
        if self._at == len(self._unread):
            self._unread, self._at = b"", 0
        if waited:
            self._receive_more()

    def _read_frame(self) -> bool:
        """Read the next whole audio frame here; leave others to websockets. Return False if there is nothing to read.

        A frame that is not whole yet is left to websockets, too, once its head is.
        """
        data, at, receiver = self._unread, self._at, self._receiver
        if receiver is not None and not (self._left or self.close_sent) and self._between_messages:
            frame = audio_frame(data, at)
            if frame is not None:
                payload, self._at = frame
                receiver.on_message(payload)
                return True
        if not self._left:
            self._left = frame_size(data, at) if self._parses_frames else len(data) - at
        piece = data[at : at + self._left]
        if not piece:
            return False
        self._at += len(piece)
        self._left -= len(piece)
        super().data_received(piece)
        self._deliver()
        return True

    @property
    def _parses_frames(self) -> bool:
        """False before the head of the handshake, and where websockets discards what the client still sends."""
        return self.handshake_initiated and not self._failed and self.conn.close_rcvd is None

    def _receive_more(self) -> None:
        """Let the transport read, unless the receiver or frames that wait forbid it."""
        held = self.read_paused if self._receiver is None else not self._reading
        if self._turn is None and not held and not self.transport.is_closing():
            self.transport.resume_reading()

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
        """Answer a ping. While the client reads nothing, keep the answer to its latest ping alone.

        Source: RFC 6455, section 5.5.3. Before the handshake is answered, and after a close frame, no pong is written.
        """
        frames = self.conn.data_to_send()
        if self._failed:
            return
        if self.congested or not self.handshake_complete or self.close_sent:
            pongs = [frame for frame in frames if frame[:1] == WHOLE_PONG]
            self._pong = pongs[-1] if pongs else self._pong
            frames = [frame for frame in frames if frame[:1] != WHOLE_PONG]  # the echo of a close frame, at most
        if frames:
            self.transport.write(b"".join(frames))

    def _write_pong(self) -> None:
        pong, self._pong = self._pong, None
        if pong is not None and not (self.close_sent or self._failed or self.transport.is_closing()):
            self.transport.write(pong)

    def handle_cont(self, event: Frame) -> None:
        """Join fragments as they come: a list of tiny ones would take fifty times the memory of their bytes."""
        if not isinstance(self.frames[0], bytearray):
            self.frames = [cast(bytes, bytearray(self.frames[0]))]
        self.frames[0] += event.data
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    def handle_close(self, event: Frame) -> None:
        """Answer the client's close frame, and wait a bounded time for it to take what is unsent."""
        super().handle_close(event)
        self._bound_end()

    def keepalive_timeout(self) -> None:
        """End a connection whose client answers no ping, unless it is not read: its pong may lie in the kernel."""
        if self._reading:
            super().keepalive_timeout()
            self._bound_end()
        else:
            self._await_pong()

    def _await_pong(self) -> None:
        assert self.ping_timeout is not None, "a ping without a time limit has no timer"
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application has returned, and uvicorn has closed the transport."""
        super().on_task_complete(task)
        self._bound_end()

    def _bound_end(self) -> None:
        """Drop the connection after a bounded time if it closes behind data that the client does not read."""
        if self._linger is None and self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._linger = self.loop.call_later(LINGER_S, self.abort)

    async def send(self, message: Any) -> None:
        """Send, and complete a refusal that uvicorn takes for an error."""
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._write_pong()
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # else uvicorn 0.54 logs an error for each refusal

    def attach(self, receiver: MessageReceiver) -> None:
        """Call this receiver from now on."""
        assert not self.conn.extensions, "frames are written as they are"
        self._receiver = receiver
        self._receive_more()
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
        self.transport.write(text_frame(payload))

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
        self._reading = True
        self._receive_more()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        # uvicorn's own timer waits for the write buffer to empty; this one does not.
        self._linger = self.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Drop the connection and all unsent data."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Leave the client's data in the kernel."""
        self._reading = False
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again; the client has the whole time from now on to answer a ping."""
        if not self._reading and self.pong_timer is not None:
            self.pong_timer.cancel()
            self._await_pong()
        self._reading = True
        self._receive_more()
