"""vosk-server's protocol on real sockets: the path and the separate port, keys, one answer per frame, closes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.audio.pcm import PCM
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.shouting import ShoutingDecoder
from tests.support.servers.spelling import silence, spell

Start = Callable[..., LiveServer]
CHUNK = 1_600  # samples: 0.1 s


def dial(url: str, **headers: str) -> ClientConnection:
    return connect(url, additional_headers=headers, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S)


def ask(socket: ClientConnection, message: bytes | str) -> Any:
    """Send a frame and wait for its answer, as every client of this protocol does."""
    socket.send(message)
    return json.loads(socket.recv(timeout=WAIT_S))


def chunks(audio: PCM) -> Iterator[bytes]:
    for start in range(0, len(audio), CHUNK):
        yield audio[start : start + CHUNK].tobytes()


def close_code(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=WAIT_S)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


@pytest.mark.parametrize("own_port", [False, True])
def test_a_client_that_waits_for_each_answer_gets_its_words_and_a_normal_close(
    live_server: Start, own_port: bool
) -> None:
    server = live_server(vosk_port=0)
    host = f"127.0.0.1:{server.vosk_port}"
    audio = np.concatenate([spell("hello there"), silence(2.0), spell("general")])
    with dial(f"ws://{host}/any/path" if own_port else f"ws://{server.host}/vosk") as socket:
        socket.send('{"config":{"sample_rate":16000}}')
        answers = [ask(socket, chunk) for chunk in chunks(audio)]
        answers.append(ask(socket, '{"eof" : 1}'))
        assert close_code(socket) == 1000
    finals = [answer for answer in answers if "text" in answer]
    assert " ".join(answer["text"] for answer in finals).split() == ["hello", "there", "general"]
    spoken = [word for answer in finals for word in answer.get("result", ())]
    assert [word["word"] for word in spoken] == ["hello", "there", "general"]
    assert all(before["end"] <= after["start"] for before, after in itertools.pairwise(spoken))
    assert all(set(answer) == {"partial"} for answer in answers if answer not in finals)
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="vosk"}') == 1


def test_a_final_has_the_words_of_the_second_pass(live_server: Start) -> None:
    server = live_server(decoder=ShoutingDecoder())
    with dial(f"ws://{server.host}/vosk?sample_rate=16000") as socket:
        ask(socket, spell("hello").tobytes())
        assert ask(socket, '{"eof" : 1}')["text"] == "HELLO"


def test_reset_completes_the_text_and_the_connection_continues(live_server: Start) -> None:
    server = live_server()
    with dial(f"ws://{server.host}/vosk?sample_rate=16000") as socket:
        for spoken, complete in (("one", "one"), ("two", "xtwo")):
            for message in (spell(spoken).tobytes(), '{"reset":1}', spell("x").tobytes()):
                socket.send(message)  # all at once: a client need not be in step
            answers = [json.loads(socket.recv(timeout=WAIT_S)) for _ in range(3)]
            assert [set(answer) for answer in answers] == [{"partial"}, {"text", "result"}, {"partial"}]
            assert answers[1]["text"] == complete
        assert ask(socket, '{"eof":1}')["text"] == "x"


def test_the_path_requires_a_key_and_the_separate_port_refuses_only_web_pages(live_server: Start) -> None:
    server = live_server(api_keys=["k3y"], vosk_port=0)
    own = f"ws://127.0.0.1:{server.vosk_port}/"
    for url, headers, status in [
        (f"ws://{server.host}/vosk", {}, 401),
        (f"ws://{server.host}/vosk?key=wrong", {}, 401),
        (own, {"Origin": "https://example.org"}, 403),
        (f"ws://{server.host}/vosk?key=k3y&sample_rate=99", {}, 400),
    ]:
        with pytest.raises(InvalidStatus) as refused:
            dial(url, **headers)
        assert refused.value.response.status_code == status
    for url, headers in [
        (f"ws://{server.host}/vosk?key=k3y", {}),
        (f"ws://{server.host}/vosk", {"Authorization": "Bearer k3y"}),
        (own, {}),
    ]:
        with dial(url, **headers) as socket:
            assert ask(socket, '{"eof":1}') == {"text": ""}


def test_the_separate_port_serves_no_http(live_server: Start) -> None:
    server = live_server(vosk_port=0)
    port = server.vosk_port
    assert httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S).status_code == 404


def test_a_full_server_refuses_with_503_and_retry_after(live_server: Start) -> None:
    server = live_server(max_streams=1)
    with dial(f"ws://{server.host}/vosk") as socket:
        assert ask(socket, b"\0\0") == {"partial": ""}
        with pytest.raises(InvalidStatus) as refused:
            dial(f"ws://{server.host}/vosk")
        assert refused.value.response.status_code == 503
        assert "Retry-After" in refused.value.response.headers


def test_invalid_text_closes_with_1008(live_server: Start) -> None:
    server = live_server()
    with dial(f"ws://{server.host}/vosk") as socket:
        socket.send("hello")
        assert close_code(socket) == 1008


def test_a_drain_sends_pending_text_and_closes_with_1012(live_server: Start) -> None:
    server = live_server(drain_timeout_s=0.0, drain_spread_s=0.0, vosk_port=0)
    with dial(f"ws://127.0.0.1:{server.vosk_port}/") as socket:
        socket.send('{"config":{"sample_rate":16000,"words":0}}')
        assert "partial" in ask(socket, spell("half a sen").tobytes())
        server.server.handle_exit(15, None)
        assert json.loads(socket.recv(timeout=WAIT_S)) == {"text": "half a sen"}
        assert close_code(socket) == 1012
    server.join()
