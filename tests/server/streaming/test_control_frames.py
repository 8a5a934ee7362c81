"""Floods of pings and fragments, and closes that the client does not read: the memory for them is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from server.streaming import client_timer, pings
from server.streaming.websocket import FRAMES_PER_CALL
from tests.support.streams.websocket_bench import Bench


def pongs(bench: Bench) -> list[bytes]:
    return [bytes(each.data) for each in bench.answers() if each.opcode is Opcode.PONG]


def ping(bench: Bench, *payloads: bytes) -> None:
    for payload in payloads:
        bench.client.send_ping(payload)
    bench.hand_over()


def test_pings_of_a_client_that_does_not_read_are_answered_by_one_pong() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.pause_writing()
        for number in range(1_000):
            ping(bench, b"a%d" % number, b"b%d" % number)
        assert bench.transport.sent == b""
        bench.websocket.resume_writing()
        assert pongs(bench) == [b"b999"]
        bench.websocket.pause_writing()
        bench.websocket.resume_writing()
        assert pongs(bench) == [], "it is written once"
        ping(bench, b"next")
        assert pongs(bench) == [b"next"]


def test_the_pong_is_sent_before_waiting_answers() -> None:
    with Bench() as bench:
        bench.attach()
        bench.receiver.on_writable = lambda: bench.websocket.write(b"answer")  # type: ignore[method-assign]
        bench.websocket.pause_writing()
        ping(bench, b"x")
        bench.websocket.resume_writing()
        assert [each.opcode for each in bench.answers()] == [Opcode.PONG, Opcode.TEXT]


def test_pings_before_the_handshake_is_answered_are_answered_after_it() -> None:
    with Bench() as bench:
        for number in range(100):
            bench.websocket.data_received(Frame(Opcode.PING, b"%d" % number).serialize(mask=True))
        assert bench.transport.sent == b""
        bench.run()
        assert bench.transport.sent.startswith(b"HTTP/1.1 101 ")
        assert pongs(bench) == [b"99"]


def test_a_close_frame_among_pings_is_answered_by_a_client_that_reads_again() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.pause_writing()
        bench.client.send_ping(b"x")
        bench.client.send_close(1000)
        bench.hand_over()
        assert [each.opcode for each in bench.answers()] == [Opcode.CLOSE]
        bench.websocket.resume_writing()
        assert bench.transport.sent == b"", "no pong after a close frame"


def test_no_pong_follows_the_close_frame_of_the_server() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.close(1012, "restart")
        bench.client.send_ping(b"x")
        bench.hand_over()
        assert [each.opcode for each in bench.answers()] == [Opcode.CLOSE]


def test_messages_after_the_close_frame_of_the_server_are_not_delivered() -> None:
    with Bench() as bench:
        bench.attach()
        bench.client.send_text(b"before")
        bench.hand_over()
        bench.websocket.close(1012, "restart")
        for late in (bench.client.send_binary, bench.client.send_text):
            late(b"x" * 200)
            bench.hand_over()
        bench.websocket.data_received(Frame(Opcode.BINARY, b"whole").serialize(mask=True))
        assert bench.receiver.messages == ["before"]


@pytest.mark.parametrize("size", [0, 1])
def test_a_message_of_tiny_fragments_is_joined_on_arrival(size: int) -> None:
    """A list of fragments would take fifty times their size, and empty ones count in no limit."""
    with Bench() as bench:
        bench.attach()
        bench.client.send_binary(b"<", fin=False)
        bench.hand_over()
        fragment = Frame(Opcode.CONT, b"x" * size, fin=False).serialize(mask=True)
        for _ in range(50):
            bench.websocket.data_received(fragment * 100)
            bench.finish_reading()
        assert [len(piece) for piece in bench.websocket.frames] == [1 + 5_000 * size]
        bench.client.send_continuation(b">", fin=True)
        bench.hand_over()
        assert bench.receiver.messages == [b"<" + b"x" * 5_000 * size + b">"]
        assert isinstance(bench.receiver.messages[0], bytes)


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG, Opcode.TEXT, Opcode.BINARY])
def test_a_flood_is_read_in_parts_that_let_others_run(kind: Opcode) -> None:
    """Nothing more is received meanwhile, so at most one read is waiting."""
    with Bench() as bench:
        bench.attach()
        bench.websocket.data_received(Frame(kind, b"").serialize(mask=True) * 1_000)
        done = len(bench.receiver.messages) + bench.transport.sent.count(b"\x8a\0")
        assert done == (0 if kind is Opcode.PONG else FRAMES_PER_CALL)
        assert not bench.transport.reading
        bench.websocket.resume_reading()
        assert not bench.transport.reading, "regardless of the caller"
        bench.finish_reading()
        done = len(bench.receiver.messages) + bench.transport.sent.count(b"\x8a\0")
        assert done == (0 if kind is Opcode.PONG else 1_000)
        assert kind is not Opcode.PONG or not bench.transport.sent
        assert bench.transport.reading


def test_a_pause_by_the_receiver_during_a_flood_takes_effect_after_it() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.data_received(Frame(Opcode.BINARY, b"x").serialize(mask=True) * 1_000)
        bench.websocket.pause_reading()
        bench.finish_reading()
        assert len(bench.receiver.messages) == 1_000, "messages already read are delivered"
        assert not bench.transport.reading
        bench.websocket.resume_reading()
        assert bench.transport.reading


def test_a_close_after_a_flood_is_answered_and_a_lost_connection_ends_it() -> None:
    with Bench() as bench:
        bench.attach()
        flood = Frame(Opcode.BINARY, b"x").serialize(mask=True) * 1_000
        bench.websocket.data_received(flood + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        bench.finish_reading()
        assert len(bench.receiver.messages) == 1_000
        assert [each.opcode for each in bench.answers()] == [Opcode.CLOSE]
    with Bench() as bench:
        bench.attach()
        bench.websocket.data_received(flood)
        bench.websocket.close(1012, "restart")
        bench.finish_reading()
        assert bench.transport.reading, "else the client's own close would never be read"
        assert bench.receiver.messages == [b"x"] * FRAMES_PER_CALL


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 3_000), max_size=20), st.randoms(use_true_random=False))
def test_many_frames_arrive_once_and_in_order_for_any_split(cuts: list[int], rng: random.Random) -> None:
    with Bench() as bench:
        bench.attach()
        sent: list[bytes | str] = []
        pings = 0
        for number in range(200):
            payload = bytes([number]) * rng.choice((0, 1, 5, 125, 126, 700, 65_535, 65_536))
            fin = rng.random() < 0.7
            if fin and rng.random() < 0.3:
                sent.append("x" * len(payload))
                bench.client.send_text(b"x" * len(payload))
                continue
            sent.append(payload + (b"" if fin else b"end"))
            bench.client.send_binary(payload, fin=fin)
            if not fin:
                pings += 1
                bench.client.send_ping(b"between")
                bench.client.send_continuation(b"end", fin=True)
        data, at = b"".join(bench.client.data_to_send()), 0
        for size in [*cuts, len(data)]:
            bench.websocket.data_received(data[at : at + size])
            at += size
            if rng.random() < 0.5:
                bench.finish_reading()
        bench.finish_reading()
        assert bench.receiver.messages == sent
        assert bench.transport.reading
        assert [frame.opcode for frame in bench.answers()] == [Opcode.PONG] * pings


def test_a_client_is_not_closed_for_a_missing_pong_while_reading_is_paused() -> None:
    """Its pong may be unread in the kernel; the time to answer starts when reading resumes."""
    with Bench() as bench:
        bench.attach()
        websocket = bench.websocket
        websocket.pause_reading()
        websocket.send_keepalive_ping()
        assert [each.opcode for each in bench.answers()] == [Opcode.PING]
        websocket._miss_pong()
        websocket._miss_pong()
        assert not bench.transport.closing
        before = websocket.pong_timer
        websocket.resume_reading()
        assert websocket.pong_timer is not before
        assert before is not None
        assert before.cancelled()
        websocket._miss_pong()
        assert bench.transport.closing
        (close,) = bench.answers()
        assert bytes(close.data).startswith(b"\x03\xf3")  # 1011


@pytest.mark.parametrize("way", ["client closes", "server shuts down", "no pong"])
def test_a_close_that_the_client_does_not_read_is_aborted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits until the client has read the unsent data; the wait must be limited."""
    monkeypatch.setattr(pings, "LINGER_S", 0.0)
    monkeypatch.setattr(client_timer, "READ_S", 0.0)
    with Bench() as bench:
        bench.attach()
        bench.transport.unsent = 70_000
        match way:
            case "client closes":
                bench.client.send_close(1000)
                bench.hand_over()
            case "server shuts down":
                bench.websocket.shutdown()
            case "no pong":
                bench.websocket._miss_pong()
        assert bench.transport.closing
        assert not bench.transport.aborted
        for _ in range(4):
            bench.run()
        assert bench.transport.aborted
