"""Twilio Media Streams: the adapter without a socket, then calls on real sockets, with text sent back or forwarded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from server.audio.pcm import PCM
from server.audio.raw import mulaw_table
from server.errors import CloseReason
from server.protocols.twilio.adapter import TwilioAdapter
from server.protocols.twilio.endpoint import signature
from server.recognition.events import Closed, Final, FinalReason
from server.streaming.adapter import Finish
from server.tools.evaluate import coded
from tests.support.protocols.protocol_bench import final_text
from tests.support.protocols.protocol_bench import twilio as twilio_stream
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.adapters import audio_of, frames_of, other_actions, words
from tests.support.servers.destination import destination, received_frames
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
Json = dict[str, Any]
NAMES = {"streamSid": "MZ1", "callSid": "CA1", "track": "inbound"}


def mulaw(audio: PCM) -> bytes:
    return coded(audio, mulaw_table()).tobytes()


def start(**form: Any) -> str:
    """Return the message that starts a stream, with every field that Twilio sends."""
    given = {"encoding": "audio/x-mulaw", "sampleRate": 8_000, "channels": 1} | form
    begun = {"accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"], "mediaFormat": given}
    return json.dumps({"event": "start", "sequenceNumber": "1", "start": begun, "streamSid": "MZ1"})


def media(data: bytes, track: str = "inbound") -> str:
    sent = {"track": track, "chunk": "1", "timestamp": "5", "payload": base64.b64encode(data).decode()}
    return json.dumps({"event": "media", "sequenceNumber": "2", "media": sent, "streamSid": "MZ1"})


CONNECTED = json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"})
STOP = json.dumps({"event": "stop", "sequenceNumber": "9", "stop": {"callSid": "CA1"}, "streamSid": "MZ1"})


def adapter(track: str = "inbound") -> TwilioAdapter:
    return twilio_stream(track=track)[0]


def test_a_call_from_connected_to_stop() -> None:
    twilio = adapter()
    assert not list(twilio.text(CONNECTED))
    assert frames_of(twilio.text(start())) == [{"event": "start"} | NAMES]
    data = mulaw(spell("hello", 8_000))
    actions = [action for at in range(0, len(data), 160) for action in twilio.text(media(data[at : at + 160]))]
    assert frames_of(twilio.text('{"event":"dtmf","dtmf":{"track":"inbound_track","digit":"5"}}')) == [
        {"event": "dtmf", "digit": "5"} | NAMES
    ]
    assert frames_of(twilio.text('{"event":"mark","mark":{"name":"played"}}')) == [
        {"event": "mark", "name": "played"} | NAMES
    ]
    (frame,) = frames_of(twilio.event(Final(0, 0.0, 1.0, words("hello"), FinalReason.ENDPOINT), None))
    assert {name: frame[name] for name in NAMES} == NAMES
    assert frame["result"]["channel"]["alternatives"][0]["transcript"] == "hello"
    stopping = list(twilio.text(STOP))
    assert other_actions(stopping) == [Finish()]
    assert len(audio_of(actions + stopping)) == len(data) * 2
    metadata, stop = frames_of(twilio.event(Closed(CloseReason.CLOSE_STREAM, 1.0), None))
    assert metadata["result"]["type"] == "Metadata"
    assert stop == {"event": "stop"} | NAMES


def test_media_of_other_tracks_is_ignored() -> None:
    twilio = adapter("outbound")
    twilio.text(start())
    assert not len(audio_of(twilio.text(media(bytes(8_000)))))
    assert len(audio_of(twilio.text(media(bytes(8_000), "outbound"))))


def test_the_signature_is_that_of_twilios_example() -> None:
    """Source: the example in twilio.com/docs/usage/security, whose webhook also signs the fields of a form."""
    form = "CallSidCA1234567890ABCDECaller+14158675309Digits1234From+14158675309To+18005551212"
    assert signature("https://mycompany.com/myapp.php?foo=1&bar=2" + form, "12345") == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


# On sockets


def test_text_is_forwarded_to_the_operators_url(live_server: Start) -> None:
    with destination() as (url, received):
        server = live_server(twilio_forward_url=url)
        with WireStream(server, "twilio", reply="false") as stream:
            stream.say("hello")
            stream.say("you")
            assert stream.finish() == 1000
        frames = received_frames(received)
        server.wait_idle()
    assert [frame["event"] for frame in (frames[0], frames[-1])] == ["start", "stop"]
    assert [text for frame in frames if (text := final_text("twilio", frame))] == ["hello", "you"]


def test_an_unreachable_forward_url_ends_the_stream(live_server: Start) -> None:
    with destination() as (url, _):
        pass
    server = live_server(twilio_forward_url=url)
    with WireStream(server, "twilio", reply="false") as stream:
        assert stream.rest()[0] == 1011
    server.wait_idle()


def test_calls_of_an_operator_with_an_auth_token_need_twilios_signature(live_server: Start) -> None:
    url = "wss://calls.example.org/v1/twilio"
    signed = live_server(api_keys=["k3y"], twilio_auth_token="t0ken", twilio_public_url=url)
    with WireStream(signed, "twilio", headers={"X-Twilio-Signature": signature(url, "t0ken")}):
        pass
    with pytest.raises(InvalidStatus) as refused:
        WireStream(signed, "twilio", headers={"X-Twilio-Signature": signature(url, "guessed")})
    assert refused.value.response.status_code == 401
