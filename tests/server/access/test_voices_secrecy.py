"""Secrecy of voices: logs, metrics, usage records, tickets and refusals are searched for vectors, names, references."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from server.access.voices import EnrolledVoice, VoiceFolder
from server.models.loading import speaker_weights
from server.tools.enrollment import enroll
from server.tools.recordings import RecordingReader
from tests.support.audio.speech import SAMPLES
from tests.support.servers.front_ends import ENGINE_HOST, RAW, FrontEnds
from tutti_asr_client.files.audio import read_pcm

KEY, OTHER = "key-of-the-bank", "key-of-the-shop"
NAME, DAMAGED, FOREIGN, UNKNOWN = "zebulon-4711", "damaged-4712", "foreign-4713", "unknown-4714"
KNOWN = "Quetzalcoatl"  # of a reference in a request
RECORDING = SAMPLES.parent / "number.flac"


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EnrolledVoice]:
    """A folder with voices, and the one that streams listen to."""
    path = tmp_path_factory.mktemp("voices")
    made = enroll([RECORDING] * 4, RecordingReader(pytest.fail))
    folder = VoiceFolder(path, speaker_weights())
    stored = folder.add(NAME, "bank", made.vector.tobytes(), made.seconds)
    folder.add(DAMAGED, "bank", made.vector.tobytes(), made.seconds)
    next(path.glob(f"{DAMAGED}*")).write_text("{}")
    folder.add(FOREIGN, "shop", made.vector.tobytes(), made.seconds)
    return path, stored


def keys_file(path: Path) -> Path:
    """Write a keys file with two names."""
    rows = [f"{hashlib.sha256(key.encode()).hexdigest()} {name}" for key, name in ((KEY, "bank"), (OTHER, "shop"))]
    path.write_text("\n".join(rows))
    return path


def of_vector(vector: bytes) -> set[str]:
    """Return texts that a vector could be written as; parts of it, as a line may be cut."""
    numbers = np.frombuffer(vector, np.float32)
    written = {base64.b64encode(vector[:48]).decode(), vector[:16].hex(), repr(vector[:8])[2:-1]}
    large = numbers[np.abs(numbers) > 0.01][:40]  # no time or sum of a metric has these digits by chance
    return written | {str(number)[:10] for number in (*large, *large.tolist())}


def connect_as_bank(server: FrontEnds, speaker: str, **more: str) -> connect:
    """Return the connection of a live stream that listens to a voice."""
    query = "&".join([RAW, f"speaker={speaker}", *(f"{name}={value}" for name, value in more.items())])
    headers = {"Authorization": f"Token {KEY}"}
    return connect(f"{server.url}/v1/listen?{query}", compression=None, additional_headers=headers)


class Searched:
    """What a server gave out, as texts."""

    def __init__(self, server: FrontEnds) -> None:
        self.server = server
        self.texts: list[str] = []
        self.marked = 0

    def live(self, speaker: str, **more: str) -> None:
        """Stream the recording."""
        try:
            with connect_as_bank(self.server, speaker, **more) as one:
                one.send(read_pcm(RECORDING, 16_000).tobytes())
                one.send('{"type":"CloseStream"}')
                frames = [json.loads(frame) for frame in one]
        except InvalidStatus as refused:
            self.texts.append(f"{refused.response.headers} {refused.response.body!r}")
            return
        self.marked += frames[-1]["other_voice_words"]
        self.texts += [json.dumps(frame) for frame in frames]

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Send a recording."""
        with self.server.http as http:
            answer = http.post(path, headers={"Authorization": f"Bearer {KEY}"}, **body)
        self.texts.append(f"{answer.headers} {answer.text}")
        return answer


def test_nothing_of_a_voice_is_given_out(
    voice: tuple[Path, EnrolledVoice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stored = voice
    log, usage = tmp_path / "log", tmp_path / "usage"
    monkeypatch.setenv("TUTTI_USAGE_LOG", str(usage))
    monkeypatch.setenv("TUTTI_METRICS_BY_KEY", "5")
    options = ["--speakers", f"--voices={path}", f"--api-keys-file={keys_file(tmp_path / 'keys')}"]
    recording = RECORDING.read_bytes()
    reference = f"data:audio/flac;base64,{base64.b64encode(recording).decode()}"
    with FrontEnds(1, *options, "--log-level=debug", "--log-format=json", log=log) as server:
        searched = Searched(server)
        searched.live(NAME)
        searched.live(NAME, resumable="true", diarize="true")
        searched.live(NAME, speaker_only="true")
        for name in (DAMAGED, FOREIGN, UNKNOWN):
            searched.live(name)
            assert searched.post(f"/v1/listen?speaker={name}", content=recording).status_code == 400
        assert searched.post(f"/v1/listen?speaker={NAME}", content=recording).status_code == 200
        form = {"model": "x-diarize", "response_format": "diarized_json", "known_speaker_names[]": KNOWN}
        files = {"file": ("one.flac", recording)}
        answer = searched.post(
            "/v1/audio/transcriptions", data={**form, "known_speaker_references[]": reference}, files=files
        )
        assert answer.status_code in (200, 400), answer.text
        with server.http as http:
            metrics = http.get("/metrics").text
        with suppress(ConnectionClosed), connect_as_bank(server, NAME) as open_one:
            server.kill(server.processes(ENGINE_HOST)[0], signal.SIGABRT)
            open_one.send(bytes(3_200))
            server.until(lambda: "engine host ended" in log.read_text())
    records = "".join(file.read_text() for file in usage.iterdir())
    lines, given_out = log.read_text(), "\n".join(searched.texts)
    assert "enrolled voice cannot be read" in lines
    assert "stream closed" in lines
    assert "bank" in records
    assert "tutti_other_voice_words_total" in metrics
    assert "Ticket" in given_out
    vectors = of_vector(stored.vector)
    assert all(len(text) >= 7 for text in vectors)
    for hidden in vectors | {NAME, DAMAGED, FOREIGN, UNKNOWN, str(path / NAME), reference[30:80]}:
        for where in (lines, metrics, records, given_out):
            assert hidden not in where, hidden
    for where in (lines, metrics, records):
        assert KNOWN not in where


def test_a_stored_voice_has_no_readable_form(voice: tuple[Path, EnrolledVoice]) -> None:
    _, stored = voice
    for text in of_vector(stored.vector) | {NAME}:
        assert text not in repr(stored)
