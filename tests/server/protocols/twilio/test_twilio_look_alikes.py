"""Services with nearly Twilio's protocol: other spellings, other types, and additions."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from server.models.loading import ModelCard
from server.protocols.deepgram.projector import Projector
from server.protocols.deepgram.query import parse_query
from server.protocols.twilio.adapter import TwilioAdapter
from server.streaming.adapter import Reject, Skip
from tests.support.servers.adapters import RATE, audio_of, frames_of

Json = dict[str, Any]
NAMES = {"streamSid": "MZ1", "callSid": "CA1", "track": "inbound"}
STOP = json.dumps({"event": "stop"})


def start(encoding: str = "audio/x-mulaw") -> str:
    begun = {"callSid": "CA1", "mediaFormat": {"encoding": encoding, "sampleRate": 8_000, "channels": 1}}
    return json.dumps({"event": "start", "start": begun, "streamSid": "MZ1"})


def media(data: bytes) -> str:
    return json.dumps({"event": "media", "media": {"track": "inbound", "payload": base64.b64encode(data).decode()}})


def adapter() -> TwilioAdapter:
    projector = Projector(parse_query([], 1), 1, "id", "now", ModelCard("tiny", "1", "uuid"))
    return TwilioAdapter(projector, model_rate=RATE, track="inbound")


FORMS = [
    {"mediaFormat": {"encoding": "audio/x-alaw", "sampleRate": 8_000, "channels": 1}},
    {"media_format": {"encoding": "PCMA", "sample_rate": 8_000, "channels": 1}},
    {"media_format": {"encoding": "pcma", "sample_rate": "8000", "channels": "1"}},
    {"MediaFormat": {"codec": "alaw", "rate": 8_000.0}},
    {"media-format": {"Encoding": "audio/x-alaw"}},
    {"encoding": "PCMA", "sample_rate": 8_000},
    {"mediaFormat": {"encoding": "audio/x-alaw"}, "media_format": {"encoding": "PCMA"}, "encoding": "alaw"},
]


@pytest.mark.parametrize("form", FORMS)
def test_the_audio_format_is_read_in_the_spellings_of_similar_services(form: Json) -> None:
    twilio = adapter()
    begun = {"stream_id": "MZ1", "call_control_id": "CA1"} | form
    assert frames_of(twilio.text(json.dumps({"event": "start", "start": begun}))) == [{"event": "start"} | NAMES]
    audio = audio_of(list(twilio.text(media(b"\x2a" * 800))) + list(twilio.text(STOP)))
    reference = adapter()
    reference.text(start(encoding="audio/x-alaw"))
    expected = audio_of(list(reference.text(media(b"\x2a" * 800))) + list(reference.text(STOP)))
    assert audio.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["mediaFormat", "media_format", "MEDIA_FORMAT", "media-format"])
@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"encoding": "L16", "sample_rate": 16_000, "channels": 1}, "encoding: 'L16'"),
        ({"encoding": "audio/x-l16"}, "encoding: 'audio/x-l16'"),
        ({"encoding": "base64", "sample_rate": "8000"}, "encoding: 'base64'"),
        ({"encoding": 7}, "encoding: 7"),
        ({"encoding": "", "sampleRate": 8_000}, "encoding: ''"),
        ({"sample_rate": 16_000}, "encoding: missing"),
        ({}, "encoding: missing"),
        ({"encoding": "PCMU", "sample_rate": 7_999}, "sampleRate: 7999"),
        ({"encoding": "PCMU", "sample_rate": "-8000"}, "sampleRate: '-8000'"),
        ({"encoding": "PCMU", "sample_rate": 8_000.5}, "sampleRate: 8000.5"),
        ({"encoding": "PCMU", "sample_rate": [8_000]}, "sampleRate: [8000]"),
        ({"encoding": "PCMU", "channels": 2}, "channels: 2"),
        ({"encoding": "PCMU", "channels": True}, "channels: True"),
        ({"encoding": "PCMU", "Encoding": "PCMA"}, "encoding is both"),
        ({"encoding": "PCMU", "sampleRate": 8_000, "sample_rate": 16_000}, "samplerate is both"),
        ("L16", "must be an object"),
    ],
)
def test_an_invalid_audio_format_is_refused_by_name(name: str, form: Any, named: str) -> None:
    for message in (
        {"event": "start", "start": {name: form}},
        {"event": "start", "start": {}, name: form},
        {"event": "start", "start": {name: form, "mediaFormat": form}},
    ):
        (action,) = adapter().text(json.dumps(message))
        assert isinstance(action, Reject)
        assert named in action.why
        assert len(action.why.encode()) <= 110


@pytest.mark.parametrize(
    "message",
    [
        {"event": "mark"},
        {"event": "mark", "mark": None},
        {"event": "mark", "mark": {}},
        {"event": "mark", "mark": {"name": None}},
        {"event": "mark", "mark": {"name": []}},
        {"event": "mark", "mark": {"name": ""}},
        {"event": "mark", "mark": "played"},
        {"event": "mark", "mark": {"name": "x" * 10_000}},
        {"event": "dtmf"},
        {"event": "dtmf", "dtmf": {"digit": None}},
        {"event": "dtmf", "dtmf": {"digit": True}},
        {"event": "dtmf", "dtmf": []},
        {"event": "clear"},
        {"event": "ping", "mark": 7},
        {"event": None},
        {"event": 5},
        {"event": {}},
        {"event": "media", "media": {"payload": "AAAA", "track": "both"}},
        {"event": "media", "media": {"payload": "AAAA", "track": 7}},
    ],
)
def test_unrecognized_messages_are_skipped_and_the_call_continues(message: Json) -> None:
    twilio = adapter()
    assert frames_of(twilio.text(json.dumps({"event": "start", "streamSid": None, "start": {"callSid": None}})))
    (action,) = twilio.text(json.dumps(message))
    assert isinstance(action, Skip)
    assert len(audio_of(twilio.text(media(bytes(8_000)))))


@pytest.mark.parametrize(
    ("message", "frame"),
    [
        ({"event": "dtmf", "dtmf": {"digit": 5}}, {"event": "dtmf", "digit": "5"}),
        ({"Event": "DTMF", "dtmf": {"Digit": "#", "track": None}}, {"event": "dtmf", "digit": "#"}),
        ({"event": "mark", "mark": {"name": 12}}, {"event": "mark", "name": "12"}),
        ({"event": "mark", "stream_sid": 9, "mark": {"name": "a", "more": []}}, {"event": "mark", "name": "a"}),
    ],
)
def test_numbers_and_other_spellings_are_forwarded_as_text(message: Json, frame: Json) -> None:
    twilio = adapter()
    twilio.text(start())
    assert frames_of(twilio.text(json.dumps(message))) == [frame | NAMES]


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ({"streamSid": None, "start": {"streamSid": "MZ1"}}, ("MZ1", "")),
        ({"stream_id": "s", "start": {"call_control_id": "v3:x", "stream_sid": None}}, ("s", "v3:x")),
        ({"streamId": 17, "start": {"callId": 4}}, ("17", "4")),
        ({"streamSid": [], "start": {"callSid": {}}}, ("", "")),
    ],
)
def test_ids_are_read_where_similar_services_send_them(message: Json, ids: tuple[str, str]) -> None:
    (frame,) = frames_of(adapter().text(json.dumps({"event": "start"} | message)))
    assert (frame["streamSid"], frame["callSid"]) == ids
