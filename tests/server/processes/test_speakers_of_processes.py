"""Speakers in a server of several processes: the labels of one process, also after an engine has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from websockets.sync.client import connect

from tests.support.audio.speech import samples
from tests.support.servers.front_ends import ENGINE_HOST, RAW, WITHIN_S, FrontEnds

STEP = 1_280
Words = list[tuple[str, float, int]]


def conversation() -> np.ndarray:
    """Return shipped recordings by turns as they are and a third higher, as a second voice, (S,) int16 at 16 kHz."""
    parts = []
    for number, sample in enumerate(samples()[:6]):
        pcm, _ = soundfile.read(sample.audio, dtype="int16")
        pcm = np.asarray(pcm if number % 2 == 0 else soxr.resample(pcm, 16_000, 12_000), np.int16)
        parts += [pcm, np.zeros(12_000, np.int16)]
    return np.concatenate(parts)


AUDIO = conversation()


def labels(server: FrontEnds, pace_s: float = 0.0) -> Words:
    """Return the words of a live stream with their times and speakers."""
    words: Words = []
    with connect(f"ws://127.0.0.1:{server.port}/v1/listen?{RAW}&diarize=true", compression=None) as socket:
        for at in range(0, len(AUDIO), STEP):
            socket.send(AUDIO[at : at + STEP].tobytes())
            time.sleep(pace_s)
        socket.send('{"type":"CloseStream"}')
        while (frame := json.loads(socket.recv(timeout=WITHIN_S)))["type"] != "Metadata":
            if frame["type"] == "Results" and frame["is_final"]:
                words += [(w["word"], w["end"], w["speaker"]) for w in frame["channel"]["alternatives"][0]["words"]]
    return words


@pytest.fixture(scope="module")
def of_one() -> Words:
    """The labels of a server of one process."""
    with FrontEnds(0, "--speakers") as server:
        return labels(server)


@pytest.fixture(scope="module")
def two() -> Iterator[FrontEnds]:
    with FrontEnds(2, "--speakers") as server:
        yield server


def test_labels_are_those_of_one_process(two: FrontEnds, of_one: Words) -> None:
    assert len(of_one) > 20
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: labels(two), range(6))) == [of_one] * 6


def test_a_killed_engine_is_a_pause_and_changes_no_label(two: FrontEnds, of_one: Words) -> None:
    with ThreadPoolExecutor(2) as pool:
        streams: list[Any] = [pool.submit(labels, two, 0.02) for _ in range(2)]
        time.sleep(1.5)
        two.kill(two.processes(ENGINE_HOST)[0])
        assert [stream.result(timeout=60) for stream in streams] == [of_one] * 2
