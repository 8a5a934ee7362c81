"""Interface between a live connection and its WebSocket, without a task or a queue in between.

A message costs one call, and an answer one write. ASGI would add a dictionary, a queue, a wake-up and the coroutines of
its layers to each; it is used only for the handshake. `server.streaming.websocket` implements the transport,
`server.streaming.connection` the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

CLIENT_LEFT = 1006  # no close frame came. Source: RFC 6455, section 7.4.1
TRANSPORT_EXTENSION = "tutti.transport"  # key in the extensions of the ASGI scope


class MessageReceiver(Protocol):
    """Receiver of one connection's messages; its methods must not block or raise."""

    @property
    def flushing(self) -> bool:
        """True while the results of a stream are due that the client, or a limit, has ended."""

    def on_message(self, message: bytes | str) -> None:
        """Handle a complete message, binary or text."""

    def on_writable(self) -> None:
        """Called when the client reads again."""

    def on_gone(self) -> None:
        """Called when the connection ends or has ended, possibly more than once."""


@dataclass(frozen=True, slots=True)
class MessageLimit:
    """The largest accepted message, and the text message that is sent before the close after a larger one."""

    max_bytes: int
    refusal: bytes


class Transport(Protocol):
    """One accepted WebSocket connection."""

    @property
    def congested(self) -> bool:
        """True while the client does not read: do not write until `on_writable`."""

    def attach(self, receiver: MessageReceiver) -> None:
        """Deliver messages to this receiver, those already received first. Call once, after the accept."""

    def limit_messages(self, limit: MessageLimit) -> None:
        """Set a message limit other than the server's configuration."""

    def write(self, payload: bytes) -> None:
        """Write a text message, UTF-8; ignored after the connection has ended."""

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake after the messages written so far."""

    def abort(self) -> None:
        """Drop the connection and all unsent data."""

    def pause_reading(self) -> None:
        """Stop reading from the socket; messages already read are still delivered."""

    def resume_reading(self) -> None:
        """Resume reading from the socket."""

    def read_at_least(self, count: int) -> None:
        """Do not read the socket while fewer bytes than this wait there."""


def transport_of(socket: WebSocket) -> Transport:
    """Return the transport that `server.streaming.websocket` put into the connection's scope.

    Raises: WebSocketDisconnect if the client left during an admission that waited; the transport is removed then.
    """
    transport: Transport | None = socket.scope["extensions"].get(TRANSPORT_EXTENSION)
    if transport is None:
        raise WebSocketDisconnect(CLIENT_LEFT)
    return transport
