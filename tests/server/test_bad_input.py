"""What clients do wrong: each gets the specified answer, its slot comes back, and no other stream notices."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from fakes import WAIT_S, FakeClock
from live_server import LiveServer, transcript
from spelling import GatedSpellingModel, silence, spell
from websockets.exceptions import InvalidStatus

from server.streaming.websocket import SEND_BUFFER_BYTES

Start = Callable[..., LiveServer]
CUT = r"(?i)reset|broken pipe|abort"


@contextmanager
def nobody_else_notices(server: LiveServer) -> Iterator[None]:
    """A healthy stream is open before, during and after; then every slot must come back."""
    with server.listen() as other:
        other.send(spell("before"))
        other.say("Finalize")
        (before,) = other.until(lambda f: f["from_finalize"])
        yield
        other.send(spell("after"))
        assert (transcript([before]), transcript(other.finish())) == ("before", "after")
    server.wait_idle()


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"encoding": "amr-nb"}, "encoding"),
        ({"encoding": "opus", "channels": 3}, "channels"),
        ({"encoding": "mulaw", "sample_rate": None}, "sample_rate"),
        ({"encoding": "flac", "resumable": "true"}, "resumable"),
        ({"sample_rate": None}, "sample_rate"),
        ({"sample_rate": 96_000}, "sample_rate"),
        ({"channels": 9}, "channels"),
        ({"channels": 3, "multichannel": "true"}, "channels"),
        ({"callback": "http://elsewhere/"}, "callback"),
    ],
)
def test_a_query_that_would_corrupt_the_result_is_refused(live_server: Start, query: dict, named: str) -> None:
    server = live_server()
    with nobody_else_notices(server):
        with pytest.raises(InvalidStatus) as refused:
            server.listen(**query)
        response = refused.value.response
        body = json.loads(response.body)
        assert response.status_code == 400
        assert body["err_code"] == "INVALID_QUERY_PARAMETER"
        assert body["err_msg"] == response.headers["dg-error"]
        assert body["err_msg"].startswith(named)
        assert body["request_id"] == response.headers["dg-request-id"]
    assert server.metric('tutti_handshakes_rejected_total{reason="bad_request"}') == 1


def test_a_query_of_strange_letters_is_refused_without_harm(live_server: Start) -> None:
    with pytest.raises(InvalidStatus) as refused:
        live_server().listen(encoding="ünïcode\r\nSet-Cookie: x")
    assert refused.value.response.status_code == 400
    assert "Set-Cookie" not in refused.value.response.headers


def test_samples_torn_apart_are_put_together(live_server: Start) -> None:
    server = live_server()
    with nobody_else_notices(server), server.listen() as client:
        audio = spell("odd bytes").tobytes()
        for start in range(0, len(audio), 333):
            client.send(audio[start : start + 333])
        client.send(audio[:1])  # half a sample: never anything
        frames = client.finish()
        assert transcript(frames) == "odd bytes"
        assert frames[-1]["duration"] == len(audio) / 32_000


def test_a_giant_message_is_refused_with_1009(live_server: Start) -> None:
    server = live_server()
    with nobody_else_notices(server), server.listen() as client:
        client.send(bytes(2**20 + 2))
        assert client.rest()[1] == 1009


def test_a_message_of_more_audio_than_a_stream_may_hold_is_refused_with_1008(live_server: Start) -> None:
    server = live_server(max_backlog_s=5.0)
    with nobody_else_notices(server), server.listen() as client:
        client.send(silence(6.0))
        _, code, reason = client.rest()
        assert (code, reason.split()[0]) == (1008, "DATA-0000")


@pytest.mark.parametrize(
    "text", ["hello", "[1,2", '{"type":"Pause"}', '{"no":"type"}', '{"type":"Finalize","channel":7}']
)
def test_text_that_means_nothing_is_answered_and_the_stream_goes_on(live_server: Start, text: str) -> None:
    server = live_server()
    with nobody_else_notices(server), server.listen() as client:
        client.socket.send(text)
        error = client.receive()
        assert (error["type"], error["variant"], error["message"]) == ("Error", "SchemaError", text)
        client.send(spell("still here"))
        assert transcript(client.finish()) == "still here"


def test_silence_for_the_idle_limit_ends_with_metadata_and_1011(live_server: Start) -> None:
    server = live_server(idle_timeout_s=0.2)
    with server.listen() as client:
        frames, code, reason = client.rest()
    assert [f["type"] for f in frames] == ["Metadata"]
    assert code == 1011
    assert "did not receive audio data" in reason
    assert "net0001" in reason
    with server.listen() as client:
        client.send(spell("yes"))
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


def test_a_client_that_leaves_its_interims_unread_is_cut_off_after_a_while(live_server: Start) -> None:
    server = live_server(write_timeout_s=0.2)
    with nobody_else_notices(server):
        deaf = deaf_client(server, step_results="true", endpointing="false")
        audio = frame(0x82, spell("abcd " * 40).tobytes())  # each of its answers repeats all words so far
        with pytest.raises(OSError, match=CUT):
            send_often(deaf, audio, 100)
    assert server.metric("tutti_slow_consumer_closes_total") == 1
    assert server.metric('tutti_sessions_total{outcome="error",protocol="deepgram"}') == 1


def test_a_client_that_leaves_more_unread_than_the_server_keeps_is_cut_off_at_once(live_server: Start) -> None:
    server = live_server()
    with nobody_else_notices(server):
        deaf = deaf_client(server)
        with pytest.raises(OSError, match=CUT):
            send_often(deaf, frame(0x81, b"?" * 250) * 100, 200)
    assert server.metric("tutti_slow_consumer_closes_total") == 1


def deaf_client(server: LiveServer, **query: object) -> socket.socket:
    """A WebSocket client that reads the handshake, and nothing ever again; its buffer is as small as can be."""
    url = urlsplit(server.url(**query))
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.settimeout(WAIT_S)
    deaf.connect((url.hostname, url.port))
    deaf.sendall(
        f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert b" 101 " in deaf.recv(2_000)
    return deaf


def send_often(client: socket.socket, message: bytes, times: int) -> None:
    """Send until cut off, or so many times."""
    with client:
        for _ in range(times):
            client.sendall(message)


def frame(kind: int, payload: bytes) -> bytes:
    """A masked frame; the mask is zero, which is a mask too."""
    return bytes([kind, 0xFF]) + len(payload).to_bytes(8) + bytes(4) + payload


def test_a_client_that_vanishes_frees_its_slot(live_server: Start) -> None:
    server = live_server(max_streams=2)
    with nobody_else_notices(server):
        for _ in range(3):
            client = server.listen()
            client.send(spell("gone")[:3_333])
            client.vanish()
            server.wait_until(lambda: server.replica.recognizer.slots_used == 1)
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="deepgram"}') == 3


def test_an_engine_that_stands_still_ends_the_stream_with_1011(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, stall_timeout_s=0.1, idle_timeout_s=0.2)
    with server.listen() as client:
        model.shut()
        client.send(np.concatenate([spell("a"), silence(1.0)]))
        model.wait_inside()
        _, code, reason = client.rest()
        assert (code, reason.split()[0]) == (1011, "NET-0000")
        model.open()
    server.wait_idle()


def test_the_kernel_holds_no_more_for_a_client_than_the_server_allows() -> None:
    assert SEND_BUFFER_BYTES <= 2**20


def test_text_that_is_no_text_ends_with_1007_and_without_a_traceback(live_server: Start, caplog) -> None:
    server = live_server()
    with nobody_else_notices(server), server.listen() as client:
        client.socket.socket.sendall(frame(0x01, b"sec") + frame(0x80, b"ret\xff"))
        assert client.rest()[1] == 1007
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
