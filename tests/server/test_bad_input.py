"""Invalid behavior of clients: each gets the specified answer, its slot is freed, other streams are not affected."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import InvalidStatus

from server.errors import BadFrame
from server.protocols.deepgram.resumable import parse_resume
from server.streaming import connection, flow_control
from server.streaming.websocket import SEND_BUFFER_BYTES
from tests.support.protocols.bare_http import client_that_does_not_read
from tests.support.servers.fakes import FakeClock
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
CUT = r"(?i)reset|broken pipe|abort"


@contextmanager
def other_streams_unaffected(server: LiveServer) -> Iterator[None]:
    """Keep a healthy stream open before, during and after the block; then every slot must be free."""
    with server.listen() as other:
        other.send(spell("before"))
        other.say("Finalize")
        (before,) = other.until(lambda f: f["from_finalize"])
        yield
        other.send(spell("after"))
        assert (transcript([before]), transcript(other.finish())) == ("before", "after")
    server.wait_idle()


def test_an_unsupported_query_value_is_refused_with_400(live_server: Start) -> None:
    server = live_server()
    with other_streams_unaffected(server):
        with pytest.raises(InvalidStatus) as refused:
            server.listen(encoding="amr-nb")
        response = refused.value.response
        body = json.loads(response.body)
        assert response.status_code == 400
        assert body["err_code"] == "INVALID_QUERY_PARAMETER"
        assert body["err_msg"] == response.headers["dg-error"]
        assert body["err_msg"].startswith("encoding")
        assert body["request_id"] == response.headers["dg-request-id"]
    assert server.metric('tutti_handshakes_rejected_total{reason="bad_request"}') == 1


def test_line_breaks_in_a_refused_query_add_no_response_header(live_server: Start) -> None:
    with pytest.raises(InvalidStatus) as refused:
        live_server().listen(encoding="ünïcode\r\nSet-Cookie: x")
    assert refused.value.response.status_code == 400
    assert "Set-Cookie" not in refused.value.response.headers


def test_samples_split_across_messages_are_joined(live_server: Start) -> None:
    server = live_server()
    with other_streams_unaffected(server), server.listen() as client:
        audio = spell("odd bytes").tobytes()
        for start in range(0, len(audio), 333):
            client.send(audio[start : start + 333])
        client.send(audio[:1])  # half a sample: dropped
        frames = client.finish()
        assert transcript(frames) == "odd bytes"
        assert frames[-1]["duration"] == len(audio) / 32_000


def test_a_message_over_one_mebibyte_closes_with_1009(live_server: Start) -> None:
    server = live_server()
    with other_streams_unaffected(server), server.listen() as client:
        client.send(bytes(2**20 + 2))
        assert client.rest()[1] == 1009


def test_a_message_over_the_backlog_limit_closes_with_1008(live_server: Start) -> None:
    server = live_server(max_backlog_s=5.0)
    with other_streams_unaffected(server), server.listen() as client:
        client.send(silence(6.0))
        _, code, reason = client.rest()
        assert (code, reason.split()[0]) == (1008, "DATA-0000")


def test_an_invalid_text_frame_gets_an_error_and_the_stream_continues(live_server: Start) -> None:
    server, text = live_server(), '{"type":"Pause"}'
    with other_streams_unaffected(server), server.listen() as client:
        client.socket.send(text)
        error = client.receive()
        assert (error["type"], error["variant"], error["message"]) == ("Error", "SchemaError", text)
        client.send(spell("still here"))
        assert transcript(client.finish()) == "still here"


def test_a_resume_with_an_invalid_field_is_refused_by_its_name() -> None:
    for text, described in (
        ('{"type":"Resume","ticket":5}', "Resume: ticket: expected str or null, got int"),
        ('{"type":"Resume","from_s":-1}', "Resume: from_s: expected float >= 0"),
        ('{"type":"Resume","from_s":1,"final":2}', "Resume: final: unknown field; leave it out"),
    ):
        with pytest.raises(BadFrame, match=f"^{described}"):
            parse_resume(text)


def test_an_idle_stream_ends_with_metadata_and_1011(live_server: Start) -> None:
    clock = FakeClock()
    server = live_server(idle_timeout_s=0.05, clock=clock)
    with server.listen() as client:
        client.say("not a type")
        client.receive()  # the answer: the stream has begun
        clock.advance(1.0)
        frames, code, reason = client.rest()
    assert [f["type"] for f in frames] == ["Metadata"]
    assert code == 1011
    assert "did not receive audio data" in reason
    assert "net0001" in reason
    with server.listen() as client:
        client.send(spell("yes"))
        client.say("not a type")
        client.receive()  # the audio has arrived, too
        clock.advance(1.0)
        frames, code, _ = client.rest()
    assert (transcript(frames), frames[-1]["type"], code) == ("yes", "Metadata", 1011)
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="idle_timeout",protocol="deepgram"}') == 2


def test_text_frames_keep_a_silent_stream_open(live_server: Start) -> None:
    clock = FakeClock()
    server = live_server(idle_timeout_s=0.05, clock=clock)
    with server.listen() as mute, server.listen() as client:
        clock.advance(0.03)
        client.say("KeepAlive")
        client.say("not a type")
        client.receive()  # the answer to the second: the first has arrived too
        clock.advance(0.03)
        assert mute.rest()[1] == 1011
        client.send(spell("here"))
        assert transcript(client.finish()) == "here"


def test_a_client_that_does_not_read_is_cut_off_after_the_write_timeout(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection, flow_control):
        monkeypatch.setattr(module, "WRITE_TIMEOUT_S", 0.2)
    server = live_server()
    with other_streams_unaffected(server):
        client = client_that_does_not_read(server, step_results="true", endpointing="false")
        audio = frame(0x82, spell("abcd " * 40).tobytes())  # each of its answers repeats all words so far
        with pytest.raises(OSError, match=CUT):
            send_repeatedly(client, audio, 100)
    assert server.metric("tutti_slow_consumer_closes_total") == 1
    assert server.metric('tutti_sessions_total{outcome="error",protocol="deepgram"}') == 1


def test_a_client_that_does_not_read_is_cut_off_at_once_when_its_outbox_is_full(live_server: Start) -> None:
    server = live_server()
    with other_streams_unaffected(server):
        client = client_that_does_not_read(server)
        with pytest.raises(OSError, match=CUT):
            send_repeatedly(client, frame(0x81, b"?" * 250) * 100, 200)
    assert server.metric("tutti_slow_consumer_closes_total") == 1


def send_repeatedly(client: socket.socket, message: bytes, times: int) -> None:
    """Send a message `times` times, or until the connection is cut."""
    with client:
        for _ in range(times):
            client.sendall(message)


def frame(kind: int, payload: bytes) -> bytes:
    """A masked frame; its mask is zero and leaves the payload as it is."""
    return bytes([kind, 0xFF]) + len(payload).to_bytes(8) + bytes(4) + payload


def test_a_cut_connection_frees_its_slot(live_server: Start) -> None:
    server = live_server(max_streams=2)
    with other_streams_unaffected(server):
        for _ in range(3):
            client = server.listen()
            client.send(spell("gone")[:3_333])
            client.vanish()
            server.wait_until(lambda: server.replica.models.slots_used == 1)
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="deepgram"}') == 3


def test_the_kernel_send_buffer_is_at_most_one_mebibyte() -> None:
    assert SEND_BUFFER_BYTES <= 2**20


def test_a_text_frame_that_is_not_utf8_closes_with_1007_and_logs_no_warning(live_server: Start, caplog) -> None:
    server = live_server()
    with other_streams_unaffected(server), server.listen() as client:
        rest = frame(0x89, b"a ping") + frame(0x82, bytes(640))
        client.socket.socket.sendall(frame(0x01, b"sec") + frame(0x80, b"ret\xff") + rest)
        assert client.rest()[1] == 1007
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
