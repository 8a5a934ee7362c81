"""Every protocol on a real socket: words and a normal close, failure, drain, a full server, keys, damaged messages."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.protocols.mutations import mutated
from tests.support.protocols.protocol_bench import END, PROTOCOLS
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.app_bench import text_of
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import poison, spell

Start = Callable[..., LiveServer]
LABELS = {"listen": "deepgram", "resumable": "deepgram"}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@each_protocol
def test_a_stream_gets_its_words_and_a_normal_close(live_server: Start, protocol: str) -> None:
    server = live_server()
    with WireStream(server, protocol) as stream:
        assert stream.socket.request is not None
        assert stream.socket.response is not None
        assert "permessage-deflate" in stream.socket.request.headers["Sec-WebSocket-Extensions"]
        assert "Sec-WebSocket-Extensions" not in stream.socket.response.headers, "compression is declined"
        stream.say("hello there")
        stream.say("you", 0.0)
        assert stream.finish() == 1000
    assert re.findall("[a-z]+", " ".join(stream.texts()).casefold()) == ["hello", "there", "you"]
    server.wait_idle()
    outcome = "client_abort" if protocol == "openai" else "completed"
    label = LABELS.get(protocol, protocol)
    assert server.metric(f'tutti_sessions_total{{outcome="{outcome}",protocol="{label}"}}') == 1
    assert server.metric("tutti_audio_seconds_total") == pytest.approx(14 * 0.08 + 1.2, abs=0.2)


@pytest.mark.parametrize("protocol", ["listen", "openai", "vosk", "twilio"])
def test_finals_have_the_words_of_the_second_pass(live_server: Start, protocol: str) -> None:
    with WireStream(live_server(decoder=ShoutingDecoder()), protocol) as stream:
        stream.say("hello there", 0.0)
        stream.finish()
    assert stream.texts() == ["hello THERE"], "the first word had been shown as stable"
    if protocol == "openai":
        assert "".join(frame.get("delta", "") for frame in stream.frames) == "hello THERE"


@each_protocol
def test_a_failed_step_closes_with_1011(live_server: Start, protocol: str) -> None:
    server = live_server()
    with WireStream(server, protocol) as stream:
        if protocol == "vosk":
            stream.send(poison().tobytes())
        else:
            stream.audio(poison().tobytes())
        code, _ = stream.rest()
    assert code == 1011
    assert "poisoned" not in json.dumps(stream.frames)
    server.wait_idle()


@each_protocol
def test_a_drain_sends_pending_text_and_closes_with_1012(live_server: Start, protocol: str) -> None:
    server = live_server(drain_timeout_s=0.0)
    with WireStream(server, protocol, **({"interim_results": "true"} if "listen" in protocol else {})) as stream:
        stream.say("half a sen", 0.0)
        if protocol in ("flux", "openai"):
            stream.until("alf")
        server.server.handle_exit(15, None)
        assert stream.rest() == (1012, "the server is restarting")
    assert "Error" not in json.dumps(stream.frames), "else LiveKit does not reconnect"
    if protocol != "resumable":  # its ticket has the rest
        assert [text.casefold().strip(".?") for text in stream.texts()] in (["half a sen"], [])
    server.join()


@each_protocol
def test_a_full_server_refuses_with_503_and_a_missing_key_with_401(live_server: Start, protocol: str) -> None:
    server = live_server(max_streams=1, api_keys=["k3y"])
    for key in ("", "wrong"):
        with pytest.raises(InvalidStatus) as refused:
            WireStream(server, protocol, key)
        assert refused.value.response.status_code == 401
    with WireStream(server, protocol, "k3y"):
        with pytest.raises(InvalidStatus) as refused:
            WireStream(server, protocol, "k3y")
        assert refused.value.response.status_code == 503
        assert "Retry-After" in refused.value.response.headers


@each_protocol
def test_damaged_messages_are_answered_without_a_cut_or_an_error_in_the_log(live_server: Start, protocol: str) -> None:
    server, frames = live_server(max_streams=8), mutated(protocol, 120, seed=3)
    closes: Counter[int | None] = Counter()
    with capture_logs() as lines:
        for _ in range(24):
            with WireStream(server, protocol) as stream:
                with contextlib.suppress(ConnectionClosed):
                    for message in (*itertools.islice(frames, 5), END[protocol]):
                        stream.send(message)
                if protocol == "openai":
                    stream.socket.close()
                with contextlib.suppress(ConnectionClosed):
                    stream.until("never said")
            closes[stream.socket.close_code] += 1
        server.wait_idle()
    assert closes.keys() <= {1000, 1008}, closes
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


def test_a_tag_appears_only_in_the_log(live_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = live_server()
    with server.listen(tag="night\nshift") as client:
        client.send(spell("hi"))
        frames = client.finish()
    server.wait_idle()
    assert transcript(frames) == "hi"
    assert "night" not in str(frames)
    (opened,) = [line for line in capsys.readouterr().out.splitlines() if "stream opened" in line]
    assert "night?shift" in opened
    assert "night" not in server.http.get("/metrics").text


@pytest.mark.parametrize("path", ["/", "/any/path"])
def test_the_port_of_vosk_needs_no_key_and_refuses_web_pages_and_http(live_server: Start, path: str) -> None:
    server = live_server(api_keys=["k3y"], vosk_port=0)
    host = f"127.0.0.1:{server.vosk_port}"
    with WireStream(server, "vosk", host=host, path=path) as stream:
        stream.send({"config": {"sample_rate": 16_000}})
        stream.say("one")
        stream.send({"reset": 1})
        stream.say("two")
        assert stream.finish() == 1000
    assert stream.texts() == ["one", "two"]
    with pytest.raises(InvalidStatus) as refused:
        WireStream(server, "vosk", host=host, headers={"Origin": "https://example.org"})
    assert refused.value.response.status_code == 403
    for method, target in (("GET", "/"), ("POST", "/metrics"), ("HEAD", "/")):
        answer = httpx.request(method, f"http://{host}{target}", timeout=WAIT_S)
        assert answer.status_code == 404
        assert method == "HEAD" or "accepts only WebSockets of vosk clients" in text_of(answer)


KEYS: list[tuple[str, dict[str, Any]]] = [
    ("vosk", {"key": "k3y"}),
    ("twilio", {"key": "k3y"}),
    ("openai", {"subprotocols": ["realtime", "openai-insecure-api-key.k3y", "openai-beta.realtime-v1"]}),
    ("listen", {"subprotocols": ["token", "k3y"]}),
    ("flux", {"subprotocols": ["token", "k3y"]}),
]


@pytest.mark.parametrize(("protocol", "options"), KEYS)
def test_a_key_is_read_from_the_query_and_from_subprotocols(
    live_server: Start, protocol: str, options: dict[str, Any]
) -> None:
    with WireStream(live_server(api_keys=["k3y"]), protocol, **options) as stream:
        assert stream.socket.subprotocol == options.get("subprotocols", [None])[0]
