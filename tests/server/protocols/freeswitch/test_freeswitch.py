"""`/v1/freeswitch` on a real socket, driven frame by frame as mod_audio_stream does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.audio.pcm import PCM
from tests.support.audio.speech import ROOT
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
Json = dict[str, Any]
FRAME_S = 0.02
DOCUMENT = yaml.safe_load((ROOT / "server" / "asyncapi.yaml").read_text(encoding="utf-8"))
CLOSE = json.dumps({"type": "CloseStream"})


def dial(server: LiveServer, query: str = "", **headers: str) -> ClientConnection:
    url = f"ws://{server.host}/v1/freeswitch{query}"
    return connect(url, compression=None, additional_headers=headers, open_timeout=WAIT_S)


def said(text: str, rate: int = 8_000) -> PCM:
    return np.concatenate([spell(text, rate), silence(0.6, rate)])


def stream(call: ClientConnection, audio: PCM, rate: int = 8_000, channels: int = 1) -> None:
    """Send audio in frames of 20 ms."""
    size, data = round(FRAME_S * rate) * 2 * channels, audio.tobytes()
    for at in range(0, len(data), size):
        call.send(data[at : at + size])


def rest(call: ClientConnection) -> tuple[list[Json], int]:
    """Return the frames up to the close, each as the document describes it, and the close code."""
    frames = []
    schema = {"$ref": "#/components/schemas/FreeSwitchTold", "components": DOCUMENT["components"]}
    try:
        while True:
            frames.append(json.loads(call.recv(timeout=WAIT_S)))
            jsonschema.validate(frames[-1], schema, jsonschema.Draft202012Validator)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None, "a lost connection"  # noqa: PT017
        return frames, closed.rcvd.code


def finals(frames: list[Json]) -> list[tuple[int, str]]:
    """Return channel and text of finals with words."""
    results = [frame["result"] for frame in frames if frame["event"] == "transcript"]
    found = [(one["channel_index"][0], one["channel"]["alternatives"][0]) for one in results if one.get("is_final")]
    return [(channel, alternative["transcript"]) for channel, alternative in found if alternative["transcript"]]


@pytest.mark.parametrize(
    ("metadata", "sent_back"),
    [('{"queue":"support","n":[1]}', {"queue": "support", "n": [1]}), ("agent 7", "agent 7"), ("x" * 20_000, None)],
    ids=["json", "text", "long"],
)
def test_a_call_with_metadata(live_server: Start, metadata: str, sent_back: object) -> None:
    with dial(live_server()) as call:
        call.send(metadata)
        stream(call, said("hello"))
        stream(call, said("you"))
        call.send(CLOSE)
        frames, code = rest(call)
    assert code == 1000
    assert frames[0] == {"event": "start"} | ({} if sent_back is None else {"metadata": sent_back})
    assert finals(frames) == [(0, "hello"), (0, "you")]
    assert [frame["event"] for frame in frames[-2:]] == ["transcript", "stop"]
    assert frames[-2]["result"]["type"] == "Metadata"


def test_a_call_whose_metadata_are_late_and_texts_during_it(live_server: Start) -> None:
    server = live_server()
    with dial(server, "?sample_rate=16000&redact=pci&tag=a") as call:
        stream(call, spell("hal", 16_000), 16_000)
        for text in ('{"type":"Finalize"}', '{"type":"KeepAlive"}', '{"callId":"7"}', "[1", "7"):
            call.send(text)
        stream(call, said("you", 16_000), 16_000)
        call.send(CLOSE)
        frames, code = rest(call)
    assert code == 1000
    assert frames[0] == {"event": "start"}
    assert [one for one in frames if one["event"] == "metadata"] == [{"event": "metadata", "metadata": {"callId": "7"}}]
    assert finals(frames) == [(0, "hal"), (0, "you")]
    assert server.metric('tutti_messages_skipped_total{protocol="freeswitch"}') == 2
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="freeswitch"}') == 1


def test_both_sides_of_a_call_are_channels(live_server: Start) -> None:
    both = np.stack([said("caller"), said("callee")], axis=1)  # (S, 2)
    with dial(live_server(), "?channels=2&multichannel=true") as call:
        stream(call, both, channels=2)
        call.send(CLOSE)
        frames, _ = rest(call)
    assert sorted(finals(frames)) == [(0, "caller"), (1, "callee")]


def test_numbers_are_masked_in_all_texts_of_a_call(live_server: Start) -> None:
    card = "four five three nine one four eight eight zero three four three six four six seven"
    with dial(live_server(), "?sample_rate=16000&redact=pci&interim_results=true") as call:
        stream(call, said(f"my card is {card} thanks", 16_000), 16_000)
        call.send(CLOSE)
        frames, _ = rest(call)
    assert finals(frames) == [(0, "my card is [CREDIT_CARD_1] thanks")]
    assert "nine" not in str(frames)
    assert any(not frame["result"]["is_final"] for frame in frames if "is_final" in frame.get("result", {}))


def test_a_call_that_closes_at_once_holds_nothing(live_server: Start) -> None:
    server = live_server()
    with dial(server) as call:
        call.send("{}")
        stream(call, said("bye"))
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="client_abort",protocol="freeswitch"}') == 1


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("", 401, "Invalid credentials"),
        ("?key=wrong", 401, "Invalid credentials"),
        ("?key=k3y&encoding=mulaw", 400, "encoding: 'mulaw' is not valid; mod_audio_stream sends linear16"),
        ("?key=k3y&rewind=10", 400, "rewind: /v1/freeswitch has no Rewind messages"),
        ("?key=k3y&resumable=true", 400, "resumable: /v1/freeswitch has no tickets"),
        ("?key=k3y&diarize=true", 400, "diarize: not supported by this server"),
        ("?key=k3y&receipt=true", 400, "receipt: only live streams at /v1/listen have receipts"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(live_server: Start, query: str, status: int, why: str) -> None:
    server = live_server(api_keys=["k3y"], max_streams=1)
    with pytest.raises(InvalidStatus) as refused:
        dial(server, query)
    assert refused.value.response.status_code == status
    assert why in json.loads(refused.value.response.body)["err_msg"]
    with dial(server, Authorization="Bearer k3y"), pytest.raises(InvalidStatus) as full:
        dial(server, "?key=k3y")
    assert full.value.response.status_code == 503


def test_a_drain_sends_the_text_so_far_and_closes_with_1012(live_server: Start) -> None:
    server = live_server(drain_timeout_s=0.0)
    with dial(server) as call:
        stream(call, said("half"))
        assert json.loads(call.recv(timeout=WAIT_S)) == {"event": "start"}
        server.wait_until(lambda: len(server.replica.sessions) == 1)
        server.server.handle_exit(15, None)
        frames, code = rest(call)
    assert code == 1012
    assert finals(frames) in ([(0, "half")], [])
    server.join()
