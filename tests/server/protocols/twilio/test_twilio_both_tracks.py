"""Both tracks of a Twilio call in one stream: a channel each, at the same stream time, one call for a key's quota."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from server.protocols.twilio.adapter import LAG_S, TwilioAdapter
from server.streaming.adapter import PushAudio
from tests.server.protocols.twilio.test_twilio import CONNECTED, STOP, mulaw, start
from tests.server.recognition.results.test_spoken_order import LONG, TALE_S, conversation
from tests.support.protocols.protocol_bench import twilio as twilio_stream
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.adapters import RATE
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
CHUNK = 160  # 20 ms


def media(data: bytes, track: str, time_ms: int | None) -> str:
    sent: dict[str, Any] = {"track": track, "chunk": "1", "payload": base64.b64encode(data).decode()}
    sent |= {} if time_ms is None else {"timestamp": str(time_ms)}
    return json.dumps({"event": "media", "sequenceNumber": "2", "media": sent, "streamSid": "MZ1"})


def call(*said: tuple[int, float, str], length_s: float) -> Iterator[str]:
    """Return the messages of a call with both tracks, 20 ms in turn."""
    audio = conversation(*said, length_s=length_s)[::2]  # of steps of two equal samples: 8 kHz
    tracks = [mulaw(audio[:, channel]) for channel in (0, 1)]
    yield CONNECTED
    yield start()
    for at in range(0, len(audio), CHUNK):
        for name, track in zip(("inbound", "outbound"), tracks, strict=True):
            yield media(track[at : at + CHUNK], name, at // 8)
    yield STOP


def received(server: LiveServer, messages: Iterator[str], **query: str) -> list[dict[str, Any]]:
    stream = WireStream(server, "twilio", track="both", **query)
    for message in messages:
        stream.send(message)
    stream.rest()
    return stream.frames


def texts(frames: list[dict[str, Any]]) -> list[tuple[str, int, str, bool | None]]:
    finals = [(f["track"], f["result"]) for f in frames if f.get("result", {}).get("is_final")]
    found = [
        (track, one["channel_index"][0], one["channel"]["alternatives"][0]["transcript"], one.get("overlap"))
        for track, one in finals
    ]
    return [one for one in found if one[2]]


def test_both_sides_of_a_call_are_one_conversation(live_server: Start) -> None:
    server = live_server()
    said = ((0, 0.2, LONG), (1, 1.0, "yes"), (1, TALE_S + 1.5, "and then"), (0, TALE_S + 3.5, "nothing"))
    length_s = TALE_S + 6
    frames = received(server, call(*said, length_s=length_s), utterances="true")
    assert texts(frames) == [
        ("inbound", 0, LONG, True),
        ("outbound", 1, "yes", True),
        ("outbound", 1, "and then", False),
        ("inbound", 0, "nothing", False),
    ]
    assert [(frame["event"], frame["track"]) for frame in (frames[0], frames[-1])] == [
        ("start", "both"),
        ("stop", "both"),
    ]
    metadata = next(f["result"] for f in frames if f.get("result", {}).get("type") == "Metadata")
    assert (metadata["channels"], metadata["duration"]) == (2, pytest.approx(length_s, abs=0.1))
    assert {one[:3] for one in texts(received(server, call(*said, length_s=length_s)))} == {
        one[:3] for one in texts(frames)
    }


def test_a_call_of_both_tracks_counts_once_for_its_key_and_as_two_streams_for_the_server(
    live_server: Start, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'k3y').hexdigest()} bank streams=1")
    server = live_server(api_keys_file=keys)
    with WireStream(server, "twilio", track="both", key="k3y") as stream:
        assert stream.receive()["event"] == "start"
        assert server.metric('tutti_sessions_active{protocol="twilio"}') == 2
        with pytest.raises(InvalidStatus) as refused:
            WireStream(server, "twilio", "k3y")
        assert refused.value.response.status_code == 429
    with pytest.raises(InvalidStatus) as refused:
        WireStream(live_server(max_channels=1), "twilio", track="both")
    assert b"track: both needs two channels" in refused.value.response.body


def adapter() -> TwilioAdapter:
    both, _ = twilio_stream(track="both")
    list(both.text(start()))
    return both


def pushed_s(twilio: TwilioAdapter, *messages: str) -> list[Any]:
    """Return the seconds of audio of each channel."""
    found = [0.0, 0.0]
    for message in messages:
        for action in twilio.text(message):
            assert isinstance(action, PushAudio)
            assert action.channel is not None
            found[action.channel] += len(action.samples) / RATE
    return [pytest.approx(each, abs=0.15) for each in found]


def test_tracks_stay_at_the_same_time() -> None:
    second = mulaw(silence(1.0, 8_000))
    alone = [media(second, "inbound", number * 1_000) for number in range(10)]
    twilio = adapter()
    assert pushed_s(twilio, *alone) == [10.0, 10.0 - LAG_S], "silence for the track that sends nothing"
    assert pushed_s(twilio, media(second, "outbound", 10_000)) == [0.0, 3.0], "its time says what is missing"
    assert pushed_s(twilio, media(second, "outbound", 11_020)) == [0.0, 1.0], "jitter"
    late = adapter()
    assert pushed_s(late, media(second, "inbound", 0)) == [1.0, 0.0]
    assert pushed_s(late, media(second, "outbound", 60_000)) == [58.0, 61.0], "a track that begins late"
    assert pushed_s(late, media(second, "inbound", 90_000)) == [32.0, 28.0], "a pause of both"
    assert pushed_s(late, media(second, "outbound", 90_000_000)) == [0.0, 1.0], "no pause of a call"
    assert pushed_s(adapter(), media(second, "inbound", 1_732_700_000)) == [1.0, 0.0], "a clock of another kind"
    assert pushed_s(adapter(), media(mulaw(spell("a", 8_000)), "inbound", None))[1] == 0.0
