"""`diarize=true` at `/v1/listen`: who said each word, live and in recordings, and what a voice alone changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from server.models import service_builder
from server.recognition.steps import Auxiliary
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence
from tests.support.servers.recognizers.voices import Voices, say
from tests.support.servers.uploaded import encoded

Start = Callable[..., LiveServer]
KEY = new_key()
TURNS = [("how are you today my friend", 0), ("fine thanks and what about you", 1), ("could not be better really", 0)]
TALK = np.concatenate([part for text, voice in TURNS for part in (say(text, voice), silence(1.0))])
SPOKEN = [(word, voice) for text, voice in TURNS for word in text.split()]


def speaking(**settings: Any) -> LiveServer:
    return LiveServer(speakers=True, auxiliary={Auxiliary.SPEAKERS: Voices()}, resume_keys=(KEY,), **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with speaking() as running:
        yield running


def live(server: LiveServer, audio: np.ndarray = TALK, size: int = 3_000, **query: Any) -> list[dict[str, Any]]:
    with server.listen(**query) as client:
        for at in range(0, len(audio), size):
            client.send(np.ascontiguousarray(audio[at : at + size]))
        return client.finish()


def words_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    finals = [frame for frame in frames if frame["type"] == "Results" and frame["is_final"]]
    return [word for frame in finals for word in frame["channel"]["alternatives"][0]["words"]]


def upload(server: LiveServer, audio: np.ndarray = TALK, **query: Any) -> dict[str, Any]:
    with server.http as http:
        answer = http.post("/v1/listen", params=query, content=encoded(audio, "WAV"))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_words_of_a_live_stream_have_their_speaker(server: LiveServer) -> None:
    words = words_of(live(server, diarize="true", interim_results="true"))
    assert [(word["word"], word["speaker"]) for word in words] == SPOKEN
    assert not any("speaker_confidence" in word or "other_voice" in word for word in words)
    assert words_of(live(server, diarize_model="latest")) == words
    assert not any("speaker" in word for word in words_of(live(server)))


def test_interim_results_have_speakers_too(server: LiveServer) -> None:
    frames = live(server, diarize="true", interim_results="true")
    interims = [frame for frame in frames if frame["type"] == "Results" and not frame["is_final"]]
    assert interims
    assert all("speaker" in w for f in interims for w in f["channel"]["alternatives"][0]["words"])


@pytest.mark.parametrize("size", [100, 1_280, 9_999, len(TALK)])
def test_speakers_depend_on_the_audio_alone(server: LiveServer, size: int) -> None:
    alone = words_of(live(server, diarize="true"))
    found: list[list[dict[str, Any]]] = []
    others = [threading.Thread(target=lambda: found.append(words_of(live(server, diarize="true")))) for _ in range(4)]
    for other in others:
        other.start()
    assert words_of(live(server, size=size, diarize="true")) == alone
    for other in others:
        other.join()
    assert found == [alone] * 4
    server.wait_idle()


def test_a_ticket_of_other_speaker_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking() as before:
        monkeypatch.setattr(service_builder, "speaker_weights", lambda: "others")
        with speaking() as after:
            with before.listen(diarize="true", resumable="true") as client:
                client.send(TALK)
                ticket = client.until(lambda frame: frame["type"] == "Ticket")[-1]["ticket"]
            with after.listen(diarize="true", resumable="true") as client:
                client.say("Resume", ticket=ticket, finals=0)
                refused = client.receive()
    assert (refused["type"], refused["code"]) == ("ResumeRefused", "TICKET_MODEL")
    assert any("speaker model" in str(value) for value in refused.values())


def test_a_resumed_stream_has_the_speakers_of_an_unbroken_one() -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(speaking()) for _ in range(2)]
        query = {"diarize": "true", "vad_events": "true"}
        whole = ResumingClient([pair[0]], TALK[:, None], 16_000, **query).run(())
        moved = ResumingClient(pair, TALK[:, None], 16_000, **query).run([1.7, 3.3, 4.21, 6.9])
    assert [(word["word"], word["speaker"]) for word in words_of(whole.finals)] == SPOKEN
    assert moved.results == whole.results


def test_a_recording_has_speakers_with_their_confidence(server: LiveServer) -> None:
    found = upload(server, diarize="true", endpointing="true")
    (alternative,) = found["results"]["channels"][0]["alternatives"]
    assert [(word["word"], word["speaker"]) for word in alternative["words"]] == SPOKEN
    assert all(word["speaker_confidence"] > 0.9 for word in alternative["words"])
    one = upload(server, diarize="true", diarize_max_speakers=1)
    assert {w["speaker"] for w in one["results"]["channels"][0]["alternatives"][0]["words"]} == {0}


def test_utterances_and_paragraphs_end_where_the_speaker_changes(server: LiveServer) -> None:
    close = np.concatenate([say("one two three four five", 0), say(" six seven eight nine ten again", 1), silence(1.0)])
    query = {"diarize": "true", "utterances": "true", "paragraphs": "true"}
    found = upload(server, close, **query)["results"]
    assert [(u["transcript"].lower().strip(".?"), u["speaker"]) for u in found["utterances"]] == [
        ("one two three four five", 0),
        ("six seven eight nine ten again", 1),
    ]
    paragraphs = found["channels"][0]["alternatives"][0]["paragraphs"]
    assert [(each["speaker"], each["num_words"]) for each in paragraphs["paragraphs"]] == [(0, 5), (1, 6)]
    assert paragraphs["transcript"].startswith("\nSpeaker 0: One two three")
    assert "\n\nSpeaker 1: six" in paragraphs["transcript"]
    plain = upload(server, close, paragraphs="true")["results"]["channels"][0]["alternatives"][0]["paragraphs"]
    assert "Speaker" not in plain["transcript"]
    assert "speaker" not in plain["paragraphs"][0]


def test_each_channel_has_speakers_of_its_own(server: LiveServer) -> None:
    stereo = np.stack([TALK, np.roll(TALK, 8_000)], axis=1)
    query: dict[str, Any] = {"diarize": "true", "multichannel": "true", "channels": 2}
    frames = live(server, stereo, **query)
    for channel in range(2):
        own = [frame for frame in frames if frame.get("channel_index", [None])[0] == channel]
        assert {word["speaker"] for word in words_of(own)} == {0, 1}
    found = upload(server, stereo, **query, utterances="true")["results"]
    assert {(u["channel"], u["speaker"]) for u in found["utterances"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("alone", [False, True])
def test_words_of_other_voices_than_the_first_are_marked_or_left_out(server: LiveServer, alone: bool) -> None:
    query: dict[str, Any] = {"speaker": "first", "speaker_only": str(alone).lower()}
    expected = [(word, voice) for word, voice in SPOKEN if not (alone and voice)]
    frames = live(server, **query, interim_results="true")
    found = upload(server, **query, endpointing="true")
    for words in (words_of(frames), found["results"]["channels"][0]["alternatives"][0]["words"]):
        assert [(word["word"], word["speaker"]) for word in words] == expected
        assert [word.get("other_voice", False) for word in words] == [bool(voice) for _, voice in expected]
    assert frames[-1]["other_voice_words"] == found["metadata"]["other_voice_words"] == 6
    server.wait_idle()
    label = "left_out" if alone else "marked"
    assert server.metric(f'tutti_other_voice_words_total{{model="spelling",outcome="{label}"}}') == 12


def test_a_server_without_speakers_says_how_to_enable_them(live_server: Start) -> None:
    server = live_server()
    refused: list[dict[str, Any]] = [{"diarize": "true"}, {"diarize_model": "v1"}, {"speaker": "first"}]
    for query in refused:
        with server.http as http:
            answer = http.post("/v1/listen", params=query, content=encoded(TALK, "WAV"))
        assert answer.status_code == 400
        assert "start the server with --speakers" in answer.json()["err_msg"]
        with pytest.raises(InvalidStatus), server.listen(**query):
            pass
    assert transcript(live(live_server(lenient_features=True), diarize="true")) == " ".join(t for t, _ in TURNS)
