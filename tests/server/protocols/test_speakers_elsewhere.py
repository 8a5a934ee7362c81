"""Speakers outside `/v1/listen` and OpenAI's uploads: vosk's vectors, Twilio's calls, and paths that have none."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from server.recognition.steps import Auxiliary
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence
from tests.support.servers.recognizers.voices import Voices, say

Start = Callable[..., LiveServer]
TALK = np.concatenate([say("hello there my dear friend", 0), silence(1.0), say("good evening to you", 1), silence(1.0)])


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(speakers=True, auxiliary={Auxiliary.SPEAKERS: Voices()}) as running:
        yield running


def vosk_finals(server: LiveServer, query: str = "", **config: Any) -> list[dict[str, Any]]:
    """Return the finals of a client that sends a frame and waits for its answer."""
    answers = []
    with connect(f"ws://{server.host}/vosk?sample_rate=16000{query}", compression=None) as socket:
        socket.send(json.dumps({"config": {"sample_rate": 16_000, **config}}))
        for at in range(0, len(TALK), 4_000):
            socket.send(TALK[at : at + 4_000].tobytes())
            answers.append(json.loads(socket.recv(timeout=20)))
        socket.send('{"eof" : 1}')
        answers.append(json.loads(socket.recv(timeout=20)))
    return [answer for answer in answers if "text" in answer]


def test_vosk_clients_get_the_vector_of_each_final(server: LiveServer) -> None:
    finals = vosk_finals(server, "&spk=true")
    assert "".join(final["text"] for final in finals).replace(" ", "").startswith("hellothere")
    vectors = [np.array(final["spk"]) for final in finals if "spk" in final]
    assert vectors, "vectors of voices"
    assert all(len(one) == 256 and np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5) for one in vectors)
    assert all(final["spk_frames"] >= 100 for final in finals if "spk" in final)
    assert not any("spk" in final for final in vosk_finals(server))


def test_vosk_says_where_vectors_are_asked_for(server: LiveServer, live_server: Start) -> None:
    with connect(f"ws://{server.host}/vosk") as socket:
        socket.send('{"config": {"spk_model": "any"}}')
        with pytest.raises(ConnectionClosed, match=r"set \?spk=true in the URL"):
            socket.recv(timeout=20)
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://{live_server().host}/vosk?spk=true"):
        pass
    assert "start the server with --speakers" in refused.value.response.body.decode()


def test_calls_of_twilio_have_speakers(server: LiveServer) -> None:
    pcm = TALK[::2]  # 8 kHz; the levels survive mulaw only roughly, which the voices do not
    with connect(f"ws://{server.host}/v1/twilio?reply=true&diarize=true", compression=None) as socket:
        media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"], "mediaFormat": media}
        socket.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        socket.send(json.dumps({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": start}))
        loud = (np.where(pcm > 500, 0x80, 0xFF)).astype(np.uint8).tobytes()
        for number, at in enumerate(range(0, len(loud), 160)):
            payload = base64.b64encode(loud[at : at + 160]).decode()
            media = {"track": "inbound", "chunk": str(number), "timestamp": str(number * 20), "payload": payload}
            socket.send(json.dumps({"event": "media", "streamSid": "MZ1", "media": media}))
        socket.send(json.dumps({"event": "stop", "streamSid": "MZ1", "stop": {"callSid": "CA1"}}))
        frames = []
        try:
            while True:
                frames.append(json.loads(socket.recv(timeout=20)))
        except ConnectionClosed:
            pass
    results = [frame["result"] for frame in frames if frame["event"] == "transcript"]
    alternatives = [each["channel"]["alternatives"][0] for each in results if each["type"] == "Results"]
    words = [word for alternative in alternatives for word in alternative["words"]]
    assert words
    assert {word["speaker"] for word in words} == {0}


PATHS = ("/v2/listen?encoding=linear16&sample_rate=16000&", "/v1/realtime?intent=transcription&")


@pytest.mark.parametrize("path", PATHS)
def test_paths_without_speakers_refuse_them_by_name(server: LiveServer, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://{server.host}{path}diarize=true"):
        pass
    assert "diarize: not supported" in refused.value.response.body.decode()
