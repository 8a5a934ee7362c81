"""Interface between a live connection and its WebSocket, without a task or a queue between them.

A message costs one call and an answer one write. ASGI would add a dictionary, a queue, a wake-up and its layers' own
coroutines to each: it serves the handshake and ends there. `server.streaming.websocket` is the transport,
`server.streaming.connection` the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starlette.websockets import WebSocket

TRANSPORT_EXTENSION = "tutti.transport"  # key in the extensions of the ASGI scope


class MessageReceiver(Protocol):
    """Receiver of one connection's messages; its methods must neither block nor raise."""

    def on_message(self, message: bytes | str) -> None:
        """Take a whole message, binary or text."""

    def on_writable(self) -> None:
        """The client takes data again."""

    def on_gone(self) -> None:
        """The connection ends or has ended; may be called more than once."""


@dataclass(frozen=True, slots=True)
class MessageLimit:
    """The largest message of a connection, and the text message that precedes the close after a larger one."""

    max_bytes: int
    refusal: bytes


class Transport(Protocol):
    """One accepted WebSocket connection."""

    @property
    def congested(self) -> bool:
        """True while the client does not read: nothing should be written until `on_writable`."""

    def attach(self, receiver: MessageReceiver) -> None:
        """Call this receiver from now on, first with the messages that arrived before. Once, when accepted."""

    def limit_messages(self, limit: MessageLimit) -> None:
        """Take messages of another size than the server's configuration says."""

    def write(self, payload: bytes) -> None:
        """Write a text message of UTF-8; ignored once the connection ends."""

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake behind the messages written before."""

    def abort(self) -> None:
        """Drop the connection and all unsent data."""

    def pause_reading(self) -> None:
        """Leave the client's data in the kernel; messages read already are still delivered."""

    def resume_reading(self) -> None:
        """Read again."""


def transport_of(socket: WebSocket) -> Transport:
    """Return the transport that `server.streaming.websocket` put into the connection's scope."""
    transport: Transport = socket.scope["extensions"][TRANSPORT_EXTENSION]
    return transport
