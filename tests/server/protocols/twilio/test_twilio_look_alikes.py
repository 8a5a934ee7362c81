"""Services with nearly Twilio's protocol: other spellings, other types, and additions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.protocols.twilio.adapter import TwilioAdapter
from tests.server.protocols.twilio.test_twilio import NAMES, STOP, media, start
from tests.support.protocols.protocol_bench import twilio as twilio_stream
from tests.support.servers.adapters import audio_of, frames_of

Json = dict[str, Any]


def adapter() -> TwilioAdapter:
    return twilio_stream()[0]


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
