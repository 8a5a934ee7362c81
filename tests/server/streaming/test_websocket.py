"""The WebSocket protocol as a transport: whole messages in order for any cut of the bytes; readable answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from server.streaming.transport import TRANSPORT_EXTENSION
from server.streaming.websocket import StreamWebSocket

MAX_BYTES = 2**20


class _Transport(asyncio.Transport):
    """Keeps what is written; reads nothing."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.sent = b""
        self.reading, self.closing, self.ended = True, False, False

    def setsockopt(self, *_: int) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "here", 1

    getpeername = getsockname

    def write(self, data: Any) -> None:
        assert not self.closing, "written behind the end"
        assert not self.ended, "written behind the end"
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

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

    def on_message(self, message: bytes | str) -> None:
        self.messages.append(message)

    def on_writable(self) -> None:
        self.writable += 1

    def on_gone(self) -> None:
        self.gone += 1


class Bench:
    """A client and the protocol, joined without sockets; `attach` is called once the handshake is over."""

    def __init__(self) -> None:
        self.receiver, self.transport = _Receiver(), _Transport()
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
        self._run()
        self.loop.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert scope["extensions"][TRANSPORT_EXTENSION] is self.websocket
        await self._over.wait()

    def _run(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def accept(self) -> None:
        self._run()
        assert self.answers() == []

    def attach(self) -> None:
        self.accept()
        self.websocket.attach(self.receiver)

    def hand_over(self, cut: Callable[[bytes], list[bytes]] = lambda data: [data]) -> None:
        """Give what the client has to send to the server, in the pieces that `cut` makes of it."""
        for piece in cut(b"".join(self.client.data_to_send())):
            self.websocket.data_received(piece)

    def answers(self) -> list[Frame]:
        """What the client reads of what was written so far."""
        sent, self.transport.sent = self.transport.sent, b""
        self.client.receive_data(sent)
        return [event for event in self.client.events_received() if isinstance(event, Frame)]


sizes = st.one_of(st.integers(0, 300), st.sampled_from([2_560, 65_535, 65_536, 70_001]))
scripts = st.lists(st.tuples(st.sampled_from(["audio", "text", "ping", "fragments"]), sizes), max_size=8)
cuts = st.lists(st.floats(0.0, 1.0), max_size=6)


def send(client: ClientProtocol, kind: str, size: int, number: int) -> list[bytes | str]:
    """Let the client send; return the messages that the receiver must be told."""
    payload = bytes((number + i) % 251 for i in range(size))
    match kind:
        case "audio":
            client.send_binary(payload)
        case "text":
            client.send_text(b"x" * size)
            return ["x" * size]
        case "ping":
            client.send_ping(payload[:100])
            return []
        case "fragments":
            client.send_binary(payload[: size // 2], fin=False)
            client.send_ping(b"between")
            client.send_continuation(payload[size // 2 :], fin=True)
    return [payload]


@settings(max_examples=60, deadline=None)
@given(scripts, cuts)
def test_every_message_arrives_once_and_in_order(script: list[tuple[str, int]], where: list[float]) -> None:
    def cut(data: bytes) -> list[bytes]:
        edges = [0, *sorted(round(at * len(data)) for at in where), len(data)]
        return [data[a:b] for a, b in pairwise(edges) if a < b]

    with Bench() as bench:
        bench.attach()
        wanted = [m for number, (kind, size) in enumerate(script) for m in send(bench.client, kind, size, number)]
        bench.hand_over(cut)
        assert bench.receiver.messages == wanted
        assert bench.transport.reading, "it is the receiver who says when to stop"
        pings = sum(kind in {"ping", "fragments"} for kind, _ in script)
        assert [f.opcode for f in bench.answers()] == [Opcode.PONG] * pings


def test_messages_from_before_attach_are_delivered_first() -> None:
    with Bench() as bench:
        bench.accept()
        early = Frame(Opcode.BINARY, b"early").serialize(mask=True)
        bench.websocket.data_received(early + early[:3])
        assert bench.receiver.messages == []
        bench.attach()
        bench.websocket.data_received(early[3:])
        assert bench.receiver.messages == [b"early", b"early"]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_an_answer_of_any_size_can_be_read(size: int) -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.write(b"x" * size)
        (frame,) = bench.answers()
        assert (frame.opcode, frame.fin, len(frame.data)) == (Opcode.TEXT, True, size)


def test_after_a_close_nothing_is_written_and_no_message_is_delivered() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.write(b"last")
        bench.websocket.close(1012, "restart")
        bench.websocket.close(1000, "")
        bench.websocket.write(b"too late")
        assert bench.receiver.gone
        bench.client.send_binary(b"audio")
        bench.hand_over()
        assert bench.receiver.messages == []
        text, close = bench.answers()
        assert (bytes(text.data), close.opcode, bytes(close.data)) == (b"last", Opcode.CLOSE, b"\x03\xf4restart")
        bench.hand_over()  # the client's own close
        assert bench.transport.closing


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x82\x03abc", 1002),  # not masked
        (b"\xc2\x83\0\0\0\0abc", 1002),  # an extension's bit
        (b"\x81\x82\0\0\0\0\xff\xfe", 1007),  # not UTF-8
        (b"\x82\xff" + (MAX_BYTES + 1).to_bytes(8, "big") + bytes(4), 1009),
    ],
)
def test_a_protocol_error_closes_the_connection_after_the_valid_messages_before_it(bad: bytes, code: int) -> None:
    with Bench() as bench:
        bench.attach()
        bench.client.send_binary(b"good")
        bench.client.writes.append(bad)
        bench.hand_over()
        assert bench.receiver.messages == [b"good"]
        assert bench.receiver.gone
        (close,) = bench.answers()
        assert int.from_bytes(bytes(close.data[:2]), "big") == code
        assert bench.transport.ended
        assert not bench.transport.closing, "it would reset the connection while the client sends"
        bench.client.writes.append(bytes(8))
        bench.hand_over()
        assert bench.receiver.messages == [b"good"]
        assert not bench.transport.closing


def test_a_protocol_error_before_the_handshake_is_answered_cuts_the_connection() -> None:
    with Bench() as bench:
        bench.websocket.data_received(b"\x82\x03abc")
        assert bench.transport.closing
        assert bench.transport.sent == b""


def test_the_receiver_is_told_of_a_close_and_of_a_lost_connection() -> None:
    with Bench() as bench:
        bench.attach()
        bench.client.send_binary(b"last")
        bench.client.send_close(1000)
        bench.hand_over()
        assert bench.receiver.messages == [b"last"]
        assert bench.receiver.gone == 1
    assert bench.receiver.gone == 2, "connection_lost tells it again"


def test_congestion_shows_and_its_end_is_reported() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.pause_writing()
        assert bench.websocket.congested
        bench.websocket.resume_writing()
        assert (bench.websocket.congested, bench.receiver.writable) == (False, 1)
