"""The WebSocket protocol as a transport: complete messages in order for any split of the bytes; readable answers."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from server.streaming.websocket import FRAMES_PER_CALL
from tests.support.streams.websocket_bench import MAX_BYTES, Bench


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


def test_a_protocol_error_before_the_handshakes_response_aborts_the_connection() -> None:
    with Bench() as bench:
        bench.websocket.data_received(b"\x82\x03abc")
        assert bench.transport.closing
        assert bench.transport.sent == b""


@pytest.mark.parametrize("ended", [False, True])
def test_a_client_that_half_closes_gets_the_results_of_its_ended_stream(*, ended: bool) -> None:
    with Bench() as bench:
        bench.attach()
        for _ in range(2 * FRAMES_PER_CALL):
            bench.client.send_binary(b"x")
        bench.hand_over()
        assert bench.websocket.eof_received(), "frames wait to be parsed"
        bench.receiver.flushing = ended
        bench.finish_reading()
        assert len(bench.receiver.messages) == 2 * FRAMES_PER_CALL
        assert bench.websocket.eof_received() is ended
        assert bench.transport.closing is not ended
        bench.websocket.write(b"last")
        bench.websocket.close(1000, "")
        assert [bytes(frame.data) for frame in bench.answers()] == [b"last", b"\x03\xe8"] * ended
        assert bench.transport.closing


def test_the_receiver_is_notified_of_a_close_and_of_a_lost_connection() -> None:
    with Bench() as bench:
        bench.attach()
        bench.client.send_binary(b"last")
        bench.client.send_close(1000)
        bench.hand_over()
        assert bench.receiver.messages == [b"last"]
        assert bench.receiver.gone == 1
    assert bench.receiver.gone == 2, "connection_lost reports it again"


def test_congestion_is_visible_and_its_end_is_reported() -> None:
    with Bench() as bench:
        bench.attach()
        bench.websocket.pause_writing()
        assert bench.websocket.congested
        bench.websocket.resume_writing()
        assert (bench.websocket.congested, bench.receiver.writable) == (False, 1)


def test_fewer_bytes_are_left_to_the_kernel_than_are_needed_by_those_that_are_read() -> None:
    with Bench() as bench:
        least: list[int] = []
        bench.transport.setsockopt = lambda *option: least.append(option[-1])
        bench.attach()
        data = Frame(Opcode.BINARY, bytes(100)).serialize(mask=True)
        bench.receiver.on_message = lambda _: bench.websocket.read_at_least(1_000)
        bench.websocket.data_received(data)
        bench.websocket.data_received(data + data[:3])
        bench.websocket.data_received(data[3:50])
        bench.websocket.read_at_least(1_000)
        bench.websocket.data_received(data[50:])
        bench.websocket.read_at_least(0)
        assert least == [1_000, 997, 1, 1_000, 1]
