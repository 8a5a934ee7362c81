"""What a live connection and its WebSocket ask of each other, without a task or a queue between them.

A message costs one call and an answer one write. ASGI would add a dictionary, a queue, a wake-up and its layers' own
coroutines to each: it serves the handshake and ends there. `server.streaming.websocket` is the wire,
`server.streaming.connection` the receiver.
"""

from __future__ import annotations

from typing import Protocol

from starlette.websockets import WebSocket

TRANSPORT_EXTENSION = "tutti.wire"  # in the ASGI scope


class MessageReceiver(Protocol):
    """Who is told what the client does; nothing it is told may block or raise."""

    def on_message(self, message: bytes | str) -> None:
        """Take a message, binary or text."""

    def on_writable(self) -> None:
        """The client takes data again."""

    def on_gone(self) -> None:
        """The connection ends or has ended; may come more than once."""


class Transport(Protocol):
    """One accepted WebSocket connection."""

    @property
    def congested(self) -> bool:
        """Whether the client leaves so much unread that nothing more should be written until it `on_writable`s."""

    def attach(self, receiver: MessageReceiver) -> None:
        """Tell this receiver everything from now on, first of all what has arrived already. Once, when accepted."""

    def write(self, payload: bytes) -> None:
        """Write a text message of UTF-8; it goes nowhere once the connection ends."""

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; what was written before goes first."""

    def abort(self) -> None:
        """Drop the connection and whatever is unsent."""

    def pause_reading(self) -> None:
        """Leave the client's data in the kernel, but for what was read already."""

    def resume_reading(self) -> None:
        """Read again."""


def transport_of(socket: WebSocket) -> Transport:
    """Return what `server.streaming.websocket` put into the connection's scope."""
    wire: Transport = socket.scope["extensions"][TRANSPORT_EXTENSION]
    return wire
