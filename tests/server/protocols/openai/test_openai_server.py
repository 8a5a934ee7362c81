"""OpenAI's interfaces on real sockets: Realtime sessions, uploads in every format, refusals in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from server.audio.pcm import PCM
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import poison, silence, spell
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
Json = dict[str, Any]


# Uploads

SPOKEN = np.concatenate([spell("hello there"), silence(1.2), spell("general")])
PATH = "/v1/audio/transcriptions"


def post(server: LiveServer, audio: PCM = SPOKEN, key: str = "", **data: Any) -> httpx.Response:
    files = {"file": ("speech.wav", encoded(audio, "WAV"), "audio/wav")}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.http.post(PATH, data={"model": "whisper-1"} | data, files=files, headers=headers)


def test_json_has_text_and_duration(live_server: Start) -> None:
    answer = post(live_server())
    assert answer.status_code == 200
    usage = {"type": "duration", "seconds": round(len(SPOKEN) / 16_000, 3)}
    assert answer.json() == {"text": "Hello, there. General.", "usage": usage}


def test_text_and_subtitles(live_server: Start) -> None:
    server = live_server()
    text = post(server, response_format="text")
    assert (text.text, text.headers["content-type"]) == ("Hello, there. General.\n", "text/plain; charset=utf-8")
    vtt = post(server, response_format="vtt").text.splitlines()
    assert vtt[0] == "WEBVTT"
    assert [line for line in vtt if "-->" not in line and line][1:] == ["Hello, there.", "General."]
    srt = post(server, response_format="srt").text
    assert srt.startswith("1\n00:00:00,")
    assert "\n2\n00:00:0" in srt


def test_verbose_json_has_segments_and_words(live_server: Start) -> None:
    server = live_server()
    plain = post(server, response_format="verbose_json").json()
    again = post(server, response_format="verbose_json", language=plain["language"]).json()
    assert (plain["language"], again) == ("english", plain)
    assert [part["text"] for part in plain["segments"]] == ["Hello, there.", "General."]
    assert "words" not in plain
    both = post(server, response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert [word["word"] for word in both["words"]] == ["Hello,", "there.", "General."]
    assert both["segments"] == plain["segments"]
    assert both["segments"][1]["start"] == both["words"][2]["start"] > both["words"][1]["end"]
    assert both["duration"] == pytest.approx(len(SPOKEN) / 16_000, abs=1e-3)


def stereo() -> PCM:
    """Two speakers, one on each channel, who speak one after the other."""
    left = np.concatenate([spell("hello there"), silence(3.0), spell("yes")])
    return np.stack([left, np.concatenate([silence(3.5), spell("general"), silence(60.0)])[: len(left)]], axis=1)


def test_channels_are_named_in_every_format(live_server: Start) -> None:
    server = live_server()
    ask = {"multichannel": "true", "timestamp_granularities[]": ["word", "segment"]}
    verbose = post(server, stereo(), response_format="verbose_json", **ask).json()
    said = [(part["speaker"], part["text"]) for part in verbose["segments"]]
    assert said == [("Channel 1", "Hello, there."), ("Channel 2", "General."), ("Channel 1", "Yes.")]
    assert [word["speaker"] for word in verbose["words"]] == ["Channel 1", "Channel 1", "Channel 2", "Channel 1"]
    lines = [f"{name}: {text}" for name, text in said]
    assert verbose["text"] == post(server, stereo(), **ask).json()["text"] == "\n".join(lines)
    assert post(server, stereo(), response_format="text", **ask).text == "\n".join([*lines, ""])
    for form in ("srt", "vtt"):
        cues = post(server, stereo(), response_format=form, **ask).text.splitlines()
        assert [line for line in cues if ": " in line] == lines
    alone = post(server, response_format="verbose_json", multichannel="true").json()
    assert alone == post(server, response_format="verbose_json").json(), "one channel has no name"


def events_of(answer: httpx.Response) -> Iterator[Json]:
    for block in answer.text.split("\n\n"):
        if block:
            yield json.loads(block.removeprefix("data: "))


def test_stream_sends_deltas_and_the_whole_text(live_server: Start) -> None:
    server = live_server(max_uploads=1)
    for _ in range(2):  # the upload place is released
        answer = post(server, stream="true")
        assert answer.headers["content-type"].startswith("text/event-stream")
        *deltas, done = events_of(answer)
        assert [delta["delta"] for delta in deltas] == ["Hello, there.", " General."]
        assert {delta["type"] for delta in deltas} == {"transcript.text.delta"}
        assert (done["type"], done["text"]) == ("transcript.text.done", "Hello, there. General.")


def test_a_failure_in_a_stream_of_events_is_the_last_event(live_server: Start) -> None:
    server = live_server(max_uploads=1)
    *_, last = events_of(post(server, poison(), stream="true"))
    assert last["error"]["type"] == "server_error"
    assert post(server).status_code == 200


def test_stereo_is_mixed(live_server: Start) -> None:
    server = live_server()
    assert post(server, np.stack([SPOKEN, SPOKEN], axis=1)).json()["text"] == "Hello, there. General."
