"""Speakers, an enrolled voice, and rest in a server of several processes, also after an engine has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.access.voices import VoiceFolder
from server.tools.enrollment import enroll
from server.tools.recordings import RecordingReader
from tests.support.audio.speech import samples
from tests.support.servers.front_ends import ENGINE_HOST, RAW, WITHIN_S, FrontEnds

STEP = 1_280
Words = list[tuple[str, float, int | None, bool]]


def conversation(pause_s: float) -> np.ndarray:
    """Return shipped recordings by turns as they are and a third higher, as a second voice, (S,) int16 at 16 kHz."""
    parts = []
    for number, sample in enumerate(samples()[:6]):
        pcm, _ = soundfile.read(sample.audio, dtype="int16")
        pcm = np.asarray(pcm if number % 2 == 0 else soxr.resample(pcm, 16_000, 12_000), np.int16)
        parts += [pcm, np.zeros(round(16_000 * pause_s), np.int16)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Stream:
    """A server's options, the query of its streams, and their audio."""

    options: tuple[str, ...]
    query: str
    audio: np.ndarray

    def words(self, server: FrontEnds, pace_s: float = 0.0) -> Words:
        """Return the words of a live stream with their times and speakers."""
        words: Words = []
        with connect(f"ws://127.0.0.1:{server.port}/v1/listen?{RAW}{self.query}", compression=None) as socket:
            for at in range(0, len(self.audio), STEP):
                socket.send(self.audio[at : at + STEP].tobytes())
                time.sleep(pace_s)
            socket.send('{"type":"CloseStream"}')
            while (frame := json.loads(socket.recv(timeout=WITHIN_S)))["type"] != "Metadata":
                if frame["type"] == "Results" and frame["is_final"]:
                    said = frame["channel"]["alternatives"][0]["words"]
                    words += [(w["word"], w["end"], w.get("speaker"), w.get("other_voice", False)) for w in said]
        return words


STREAMS = {
    "speakers": Stream(("--speakers",), "&diarize=true&speaker=ada", conversation(0.75)),
    "rest": Stream(("--rest-s=0.8",), "", conversation(2.5)),
}


@pytest.fixture(scope="module", params=STREAMS)
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    chosen: Stream = STREAMS[request.param]
    if "--speakers" not in chosen.options:
        return chosen
    folder = tmp_path_factory.mktemp("voices")
    audio = next(sample.audio for sample in samples() if sample.speaker == "kokoro-bm_george")
    voice = enroll([audio] * 3, RecordingReader(pytest.fail))
    VoiceFolder(folder, voice.weights).add("ada", "", voice.vector.tobytes(), voice.seconds)
    return replace(chosen, options=(*chosen.options, f"--voices={folder}"))


@pytest.fixture(scope="module")
def of_one(stream: Stream) -> Words:
    """The words of a server of one process."""
    with FrontEnds(0, *stream.options) as server:
        words = stream.words(server)
        rested = server.metric('tutti_rested_steps_total{model="tutti"}')
        assert (rested > 10) == ("--rest-s=0.8" in stream.options)
        assert {other for *_, other in words} == ({False, True} if "--speakers" in stream.options else {False})
        return words


@pytest.fixture(scope="module")
def two(stream: Stream) -> Iterator[FrontEnds]:
    with FrontEnds(2, *stream.options) as server:
        yield server


def test_words_and_labels_are_those_of_one_process(stream: Stream, two: FrontEnds, of_one: Words) -> None:
    assert len(of_one) > 20
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: stream.words(two), range(6))) == [of_one] * 6


def test_a_killed_engine_is_a_pause_and_changes_no_word(stream: Stream, two: FrontEnds, of_one: Words) -> None:
    with ThreadPoolExecutor(2) as pool:
        streams: list[Any] = [pool.submit(stream.words, two, 0.02) for _ in range(2)]
        time.sleep(1.5)
        two.kill(two.processes(ENGINE_HOST)[0])
        assert [one.result(timeout=60) for one in streams] == [of_one] * 2


def test_more_streams_than_may_step_rest_and_speak_in_turn_also_after_a_killed_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two may step in all front ends; each text is that of a stream alone."""
    monkeypatch.setenv("TUTTI_IDLE_TIMEOUT_S", "60")
    resting = 'tutti_resting_channels{model="tutti"}'
    speech = conversation(2.5)[: 4 * 16_000]
    clients: list[ClientConnection] = []

    def enter() -> bool:
        try:
            clients.append(server.opened())
        except InvalidStatus:  # the others still step, or rest since less than a period
            return False
        clients[-1].send(np.zeros(32_000, np.int16).tobytes())
        return True

    with FrontEnds(2, "--max-streams=2", "--rest-s=0.8") as server:
        server.until(enter)
        alone = said(clients.pop(), speech)
        for count in range(1, 7):
            server.until(enter)
            server.until(lambda count=count: server.metric(resting) == count)  # type: ignore[misc]
        assert said(clients.pop(), speech) == alone != ""
        server.kill(server.processes(ENGINE_HOST)[0])
        with ThreadPoolExecutor(5) as pool:
            assert list(pool.map(said, clients, [speech] * 5)) == [alone] * 5


def said(client: ClientConnection, audio: np.ndarray) -> str:
    """Send the audio, end the stream, and return its text."""
    client.send(audio.tobytes())
    client.send('{"type":"CloseStream"}')
    texts = []
    while (frame := json.loads(client.recv(timeout=WITHIN_S)))["type"] != "Metadata":
        if frame["type"] == "Results" and frame["is_final"]:
            texts.append(frame["channel"]["alternatives"][0]["transcript"])
    return " ".join(filter(None, texts))
