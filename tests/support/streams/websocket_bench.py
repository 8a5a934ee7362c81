"""A client and the server's WebSocket protocol, connected without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from uvicorn import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.uri import parse_uri

from server.streaming.transport import TRANSPORT_EXTENSION
from server.streaming.websocket import StreamWebSocket

MAX_BYTES = 2**20


class TcpTransport(asyncio.Transport):
    """Transport that records what is written and reads nothing."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.sent = b""
        self.reading, self.closing, self.ended = True, False, False
        self.aborted = False
        self.unsent = 0  # bytes that the client has not read

    def setsockopt(self, *_: int) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "here", 1

    getpeername = getsockname

    def write(self, data: Any) -> None:
        assert not self.closing, "written after the end"
        assert not self.ended, "written after the end"
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class _Receiver:
    def __init__(self) -> None:
        self.messages: list[bytes | str] = []
        self.gone = self.writable = 0
        self.flushing = False

    def on_message(self, message: bytes | str) -> None:
        self.messages.append(message)

    def on_writable(self) -> None:
        self.writable += 1

    def on_gone(self) -> None:
        self.gone += 1


class Bench:
    """A client and the protocol, connected without sockets; `attach` is called after the handshake."""

    def __init__(self) -> None:
        self.receiver, self.transport = _Receiver(), TcpTransport()
        self.client = ClientProtocol(parse_uri("ws://here/"), max_size=None)
        self.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        config = Config(
            self._app, interface="asgi3", ws_max_size=MAX_BYTES, ws_per_message_deflate=False, ws_ping_interval=None
        )
        config.load()
        self.websocket = StreamWebSocket(config, ServerState(), {}, self.loop)
        self.websocket.connection_made(self.transport)
        self.client.send_request(self.client.connect())
        self.hand_over()
        return self

    def __exit__(self, *_: object) -> None:
        self.websocket.connection_lost(None)
        self._over.set()
        self.run()
        self.loop.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert scope["extensions"][TRANSPORT_EXTENSION] is self.websocket
        await self._over.wait()

    def run(self) -> None:
        """Run the callbacks of the event loop that are due."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def finish_reading(self) -> None:
        """Let the server read all that it has received, in as many turns as it takes."""
        while self.websocket._next_call is not None:
            self.run()

    def accept(self) -> None:
        self.run()
        assert self.answers() == []

    def attach(self) -> None:
        self.accept()
        self.websocket.attach(self.receiver)

    def hand_over(self, cut: Callable[[bytes], list[bytes]] = lambda data: [data]) -> None:
        """Pass the client's data to the server, in the pieces from `cut`."""
        for piece in cut(b"".join(self.client.data_to_send())):
            self.websocket.data_received(piece)

    def answers(self) -> list[Frame]:
        """Return what the client reads of the data written so far."""
        sent, self.transport.sent = self.transport.sent, b""
        self.client.receive_data(sent)
        return [event for event in self.client.events_received() if isinstance(event, Frame)]
