"""uvicorn's WebSocket protocol with pings of clients that do not read, and pongs that wait while reading is paused."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from server.streaming.client_timer import READ_S, ClientTimer

LINGER_S = 10.0  # time for the client's close frame, the end of a failed connection, or reading unsent data
WHOLE_PONG = b"\x8a"  # FIN, no extension bits, opcode 10. Source: RFC 6455, section 5.2


class PingedWebSocket(WebSocketsSansIOProtocol):
    """Answers pings, closes without pongs, and bounds the time of a close."""

    congested = False
    _linger: ClientTimer | None = None
    _reading = True  # False while the receiver has paused reading
    _failed = False  # after a protocol error of the client: nothing more is written
    _pong: bytes | None = None  # unsent answer to the latest ping

    def handle_ping(self) -> None:
        """Answer a ping. While the client does not read, keep only the answer to its latest ping.

        Source: RFC 6455, section 5.5.3. No pong is written before the handshake's response and after a close frame.
        """
        frames = self.conn.data_to_send()
        if self._failed:
            return
        if self.congested or not self.handshake_complete or self.close_sent:
            pongs = [frame for frame in frames if frame[:1] == WHOLE_PONG]
            self._pong = pongs[-1] if pongs else self._pong
            frames = [frame for frame in frames if frame[:1] != WHOLE_PONG]  # at most the echo of a close frame
        if frames:
            self.transport.write(b"".join(frames))

    def _write_pong(self) -> None:
        pong, self._pong = self._pong, None
        if pong is not None and not (self.close_sent or self._failed or self.transport.is_closing()):
            self.transport.write(pong)

    def keepalive_timeout(self) -> None:
        """Close if the client does not answer pings, once what it sent before was read."""
        self.pong_timer = self.loop.call_later(READ_S, self._miss_pong)

    def _miss_pong(self) -> None:
        """Close unless reading is paused: the pong may be unread in the kernel."""
        if self._reading:
            super().keepalive_timeout()
            self._bound_end()
        else:
            self._await_pong()

    def _await_pong(self) -> None:
        assert self.ping_timeout is not None, "pings without a timeout have no timer"
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    def _bound_end(self) -> None:
        """Abort after `LINGER_S` if the transport is closing and the client does not read the remaining data."""
        if self._linger is None and self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._linger = ClientTimer(self.loop, LINGER_S, self.transport.abort)
