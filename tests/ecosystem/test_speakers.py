"""Speakers with unmodified clients: `deepgram-sdk` live and prerecorded, `openai`, and frames of vosk's clients."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.ecosystem.driving import missing
from tests.ecosystem.recordings import FILES, RATE_HZ, audio, plain, text
from tests.ecosystem.serving import KEY, ServerProcess

try:
    import openai
    from deepgram import DeepgramClient
    from deepgram.core.api_error import ApiError
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment
    from websockets.sync.client import connect
except ImportError:
    missing("deepgram-sdk or openai not installed")

SAID = ("order", "porch_fan")
AUDIO = audio("order", 1.6, "porch_fan", 1.0)
CHUNK_BYTES = 3_200


@pytest.fixture(scope="module")
def speaking() -> Iterator[ServerProcess]:
    with ServerProcess(speakers="true") as server:
        yield server


def deepgram(server: ServerProcess) -> DeepgramClient:
    http, ws = f"http://127.0.0.1:{server.port}", f"ws://127.0.0.1:{server.port}"
    return DeepgramClient(
        api_key=KEY, environment=DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    )


def live(server: ServerProcess, **options: Any) -> list[Any]:
    """Return the words of the finals as the SDK's objects."""
    found: list[Any] = []
    asked = {"model": "nova-3", "encoding": "linear16", "sample_rate": RATE_HZ, **options}
    with deepgram(server).listen.v1.connect(**asked) as stream:
        stream.on(EventType.MESSAGE, found.append)
        reading = threading.Thread(target=stream.start_listening)
        reading.start()
        for at in range(0, len(AUDIO), CHUNK_BYTES):
            stream.send_media(AUDIO[at : at + CHUNK_BYTES])
        stream.send_close_stream()
        reading.join(timeout=30)
    return [w for m in found if m.type == "Results" and m.is_final for w in m.channel.alternatives[0].words]


def test_deepgrams_sdk_reads_speakers_of_a_live_stream(speaking: ServerProcess) -> None:
    words = live(speaking, diarize=True)
    assert " ".join(word.word for word in words) == text(*SAID)
    assert all(isinstance(word.speaker, int | float) for word in words)
    assert words[0].speaker == 0
    assert all(word.speaker is None for word in live(speaking))


def test_deepgrams_sdk_reads_speakers_of_a_recording(speaking: ServerProcess) -> None:
    media = deepgram(speaking).listen.v1.media
    body = Path(FILES["porch_fan"]).read_bytes()
    found = media.transcribe_file(request=body, model="nova-3", diarize=True, utterances=True, paragraphs=True)
    (alternative,) = found.results.channels[0].alternatives
    assert [word.speaker for word in alternative.words] == [0] * len(text("porch_fan").split())
    assert all(0 <= word.speaker_confidence <= 1 for word in alternative.words)
    assert [one.speaker for one in found.results.utterances] == [0] * len(found.results.utterances)
    assert [one.speaker for one in alternative.paragraphs.paragraphs] == [0]
    assert plain(alternative.paragraphs.paragraphs[0].sentences[0].text) in text("porch_fan")


def test_a_server_without_speakers_tells_the_sdk_how_to_enable_them(server: ServerProcess) -> None:
    with pytest.raises(ApiError) as refused:
        deepgram(server).listen.v1.media.transcribe_file(request=b"RIFF", model="nova-3", diarize=True)
    assert "start the server with --speakers" in str(refused.value.body)


def test_openais_client_reads_segments_by_speaker(speaking: ServerProcess) -> None:
    client = openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{speaking.port}/v1", max_retries=0)
    pcm, rate = soundfile.read(FILES["order"], dtype="int16")
    reference = f"data:audio/flac;base64,{base64.b64encode(Path(FILES['order']).read_bytes()).decode()}"
    assert 2 * rate <= len(np.asarray(pcm)) <= 10 * rate
    for known in ({}, {"known_speaker_names": ["Ada"], "known_speaker_references": [reference]}):
        with Path(FILES["order"]).open("rb") as recording:
            found = client.audio.transcriptions.create(
                file=recording,
                model="gpt-4o-transcribe-diarize",
                response_format="diarized_json",
                chunking_strategy="auto",
                extra_body=known,
            )
        assert type(found).__name__ == "TranscriptionDiarized"
        assert [segment.speaker for segment in found.segments] == ["Ada" if known else "A"]
        assert found.segments[0].text == found.text == "Where is my order?"


def test_vosks_clients_read_the_vector_of_each_final(speaking: ServerProcess) -> None:
    with connect(f"ws://127.0.0.1:{speaking.port}/vosk?key={KEY}&spk=true", compression=None) as socket:
        socket.send(json.dumps({"config": {"sample_rate": RATE_HZ}}))
        answers = []
        for at in range(0, len(AUDIO), 8_000):
            socket.send(AUDIO[at : at + 8_000])
            answers.append(json.loads(socket.recv(timeout=20)))
        socket.send('{"eof" : 1}')
        answers.append(json.loads(socket.recv(timeout=20)))
    vectors = [np.array(answer["spk"]) for answer in answers if "spk" in answer]
    assert vectors
    assert all(np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-4) for vector in vectors)


def test_nothing_of_a_voice_is_logged(speaking: ServerProcess) -> None:
    live(speaking, diarize=True)
    assert "spk" not in speaking.log.replace("spk=true", "")
    assert "vector" not in speaking.log
