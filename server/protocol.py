"""uvicorn's WebSocket protocol, and what it lacks: a way to cut a connection, and bounded kernel memory for one.

`transport.close()` waits for ever for a client that does not read; a server that promises its slots and its memory
back must be able to abort. Applications reach it as the ASGI extension `tutti.abort`.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

ABORT_EXTENSION = "tutti.abort"
SEND_BUFFER_BYTES = 256 * 1024  # about a minute of answers; left alone, Linux grows it to 4 MiB and more
LINGER_S = 10.0  # for the client's own close frame


class ListenProtocol(WebSocketsSansIOProtocol):
    """The protocol that `server.serve` gives to uvicorn."""

    _linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound what the kernel holds for a client that does not read."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection."""
        if self._linger is not None:
            self._linger.cancel()
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        """Offer the extension to the application, whose task has not begun to run yet."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][ABORT_EXTENSION] = {"abort": self.abort}

    def abort(self) -> None:
        """Drop the connection and whatever is unsent."""
        self.transport.abort()

    async def send(self, message: Any) -> None:
        """Send, and mend two things: a close that nobody takes, and a refusal that uvicorn takes for an error."""
        await super().send(message)
        if message["type"] == "websocket.close" and not self.transport.is_closing():
            # uvicorn's own timer waits for the write buffer to empty; this one does not.
            self._linger = self.loop.call_later(LINGER_S, self.abort)
        elif message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # by a refusal; else uvicorn 0.54 logs an error for each
