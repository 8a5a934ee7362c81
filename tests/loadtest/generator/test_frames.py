"""The generator's WebSocket frames, checked with the websockets library."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from loadtest.errors import BadFrame
from loadtest.generator.frames import BINARY, CLOSE, PING, TEXT, FrameReader, masked
from loadtest.measurement.report import faults
from tests.support.clients.fake_listen import Plan
from tests.support.clients.loadtest_bench import under_load, write_manifest

OPCODES = {TEXT: Opcode.TEXT, BINARY: Opcode.BINARY, CLOSE: Opcode.CLOSE, PING: Opcode.PING}


def from_server(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(Opcode(opcode), payload, fin).serialize(mask=False)


def library_reads(data: bytes) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=True)
    try:
        next(parsing)
    except StopIteration as done:
        frame: Frame = done.value
        return frame
    raise AssertionError("not a whole frame")


@pytest.mark.parametrize("length", [0, 1, 5, 125, 126, 2_560, 65_535, 65_536])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_the_library_reads_our_frames(opcode: int, length: int) -> None:
    payload = random.Random(length).randbytes(length)
    frame = library_reads(masked(opcode, payload))
    assert (frame.opcode, bytes(frame.data), frame.fin) == (OPCODES[opcode], payload, True)


def test_each_frame_has_a_different_mask() -> None:
    assert masked(BINARY, bytes(8)) != masked(BINARY, bytes(8))


@given(
    st.lists(
        st.tuples(st.sampled_from([TEXT, PING]), st.binary(max_size=125))
        | st.tuples(st.just(TEXT), st.binary(min_size=126, max_size=400))
    ),
    st.lists(st.integers(0, 2_000)),
)
def test_messages_do_not_depend_on_the_chunking_of_bytes(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(from_server(opcode, payload) for opcode, payload in frames)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = FrameReader()
    found = [frame for first, last in itertools.pairwise(edges) for frame in reader.feed(data[first:last])]
    assert found == frames


def test_fragments_are_joined_and_a_ping_between_them_is_kept() -> None:
    data = from_server(TEXT, b"one ", fin=False) + from_server(PING, b"p") + from_server(0, b"two")
    assert FrameReader().feed(data) == [(PING, b"p"), (TEXT, b"one two")]


@pytest.mark.parametrize(
    "data",
    [
        masked(TEXT, b"a server does not mask"),
        from_server(0, b"nothing to continue"),
        from_server(TEXT, b"a", fin=False) + from_server(TEXT, b"b"),
        bytes([0x81, 127]) + (1 << 40).to_bytes(8, "big"),
    ],
    ids=["masked", "no beginning", "no end", "too long"],
)
def test_invalid_frames_are_rejected(data: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameReader().feed(data)


def test_the_library_accepts_a_complete_session() -> None:
    """Two messages and a reply to the close, with websockets' server protocol."""
    server = ServerProtocol()
    server.receive_data(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    [request] = server.events_received()
    server.send_response(server.accept(request))
    server.receive_data(masked(BINARY, b"audio") + masked(TEXT, b"{}"))
    assert [bytes(frame.data) for frame in server.events_received()] == [b"audio", b"{}"]
    server.send_close(1000, "")
    server.receive_data(masked(CLOSE, (1000).to_bytes(2, "big")))
    assert server.close_rcvd is not None
    assert (server.close_rcvd.code, server.state) == (1000, State.CLOSING)  # only the TCP close is missing


def test_an_invalid_frame_under_load_is_a_failure(tmp_path: Path) -> None:
    level, _ = under_load(write_manifest(tmp_path), lambda number: Plan(broken_frame=number == 1))
    assert level.failed == 1
    assert "closed with 1002" in next(iter(level.problems))
    assert faults(level)
