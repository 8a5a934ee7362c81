"""Speakers in `/v1/audio/transcriptions`: `diarized_json`, names of known voices, subtitles."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from server.recognition.steps import Auxiliary
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence
from tests.support.servers.recognizers.voices import Voices, say
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
TALK = np.concatenate([
    say("good morning to you all", 0), silence(1.0), say("hello and how are you", 1), silence(1.0),
    say("quite well thanks to you", 0), silence(1.0),
])  # fmt: skip
TEXTS = ["good morning to you all", "hello and how are you", "quite well thanks to you"]
DIARIZED = {"model": "gpt-4o-transcribe-diarize", "response_format": "diarized_json"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(speakers=True, auxiliary={Auxiliary.SPEAKERS: Voices()}) as running:
        yield running


def asked(server: LiveServer, **fields: Any) -> httpx.Response:
    with server.http as http:
        return http.post("/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", encoded(TALK, "WAV"))})


def reference(voice: int, text: str = "this is how my own voice sounds in here") -> str:
    body = encoded(np.concatenate([say(text, voice), silence(0.5)]), "WAV")
    return "data:audio/wav;base64," + base64.b64encode(body).decode()


def plain(text: str) -> str:
    return text.lower().strip(".?").replace(",", "")


def test_segments_are_of_one_speaker_each(server: LiveServer) -> None:
    found = asked(server, **DIARIZED, chunking_strategy="auto").json()
    assert [(plain(each["text"]), each["speaker"]) for each in found["segments"]] == list(
        zip(TEXTS, ["A", "B", "A"], strict=True)
    )
    assert [each["type"] for each in found["segments"]] == ["transcript.text.segment"] * 3
    assert len({each["id"] for each in found["segments"]}) == 3
    assert plain(found["text"]).startswith(TEXTS[0])
    assert (found["task"], found["usage"]["type"]) == ("transcribe", "duration")
    assert found["duration"] == pytest.approx(len(TALK) / 16_000, abs=0.01)


def test_known_voices_have_their_names(server: LiveServer) -> None:
    fields = {
        "known_speaker_names[]": ["Agent", "Stranger"],
        "known_speaker_references[]": [reference(1), reference(5)],
    }
    found = asked(server, **DIARIZED, **fields).json()
    assert [each["speaker"] for each in found["segments"]] == ["A", "Agent", "A"]
    vtt = asked(server, model="gpt-4o-transcribe-diarize", response_format="vtt", **fields).text
    spans = [line.partition(">")[0] for line in vtt.splitlines() if line.startswith("<v ")]
    assert spans == ["<v Speaker 1", "<v Agent", "<v Speaker 1"]


def test_subtitles_name_the_speakers_of_models_that_distinguish_them(server: LiveServer) -> None:
    srt = asked(server, model="gpt-4o-transcribe-diarize", response_format="srt").text
    labels = [line.partition(":")[0] for line in srt.splitlines() if "Speaker" in line]
    assert labels == ["Speaker 1", "Speaker 2", "Speaker 1"]
    assert "Speaker" not in asked(server, model="whisper-1", response_format="srt").text
    assert "segments" not in asked(server, model="gpt-4o-transcribe-diarize").json(), "plain json"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"known_speaker_names[]": ["Ada"]}, "known_speaker_references: 0 given for 1 known_speaker_names"),
        ({"known_speaker_names[]": ["Ada"], "known_speaker_references[]": ["x"]}, "that of 'Ada' is not a data URL"),
        (
            {"known_speaker_names[]": ["Ada"], "known_speaker_references[]": ["data:audio/wav;base64,?"]},
            "that of 'Ada' is not base64",
        ),
        (
            {"known_speaker_names[]": ["Ada", "Ada"], "known_speaker_references[]": [reference(0)] * 2},
            "names must be different",
        ),
        (
            {"known_speaker_names[]": list("abcde"), "known_speaker_references[]": [reference(0)] * 5},
            "known_speaker_names: 5 given; at most 4",
        ),
        (
            {"known_speaker_names[]": ["Ada"], "known_speaker_references[]": [reference(0, "short")]},
            "that of 'Ada' has 0.9 s; must be 2 to 10 s",
        ),
        ({"stream": "true"}, "response_format: diarized_json cannot be combined with stream"),
    ],
)
def test_fields_that_cannot_be_followed_are_refused(server: LiveServer, fields: dict[str, Any], why: str) -> None:
    answer = asked(server, **DIARIZED, **fields)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields", [{"model": DIARIZED["model"]}, {"response_format": "diarized_json"}, {"known_speaker_names[]": "Ada"}]
)
def test_a_server_without_speakers_says_how_to_enable_them(live_server: Start, fields: dict[str, Any]) -> None:
    answer = asked(live_server(), **fields)
    assert answer.status_code == 400
    assert "start the server with --speakers" in answer.json()["error"]["message"]
