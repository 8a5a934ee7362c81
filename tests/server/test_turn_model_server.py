"""A server with a turn model: who asks it, and a file of another form."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

from tests.support.networks.turn_model import write_turn_model
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
RAW = "encoding=linear16&sample_rate=16000"
STEP = 1_280
STEP_S = STEP / 16_000


def counted(server: LiveServer) -> dict[str, float]:
    return {name: child._value.get() for name, child in server.replica.metrics.turn_questions.items()}


def speak(server: LiveServer, path: str) -> None:
    """Send a second of modulated noise and 0.5 s of quiet in real time, then end the stream."""
    noise = np.random.default_rng(2).normal(0, 3_000, 16_000)
    sound = np.where(np.arange(16_000) % 2_560 < 1_920, noise, noise / 20)
    audio = np.concatenate([sound, np.zeros(8_000)]).astype(np.int16)
    with connect(f"ws://{server.host}{path}", open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:
        start_s = time.monotonic()
        for number, first in enumerate(range(0, len(audio), STEP), start=1):
            time.sleep(max(0.0, start_s + number * STEP_S - time.monotonic()))
            socket.send(audio[first : first + STEP].tobytes())
        socket.send('{"type":"CloseStream"}')
        for _ in socket:
            pass


@pytest.mark.parametrize("path", [f"/v2/listen?model=flux-general-en&{RAW}", f"/v1/listen?endpointing=smart&{RAW}"])
def test_the_model_is_asked_in_a_pause_of_a_stream_that_ends_by_the_score(
    live_server: Start, tmp_path: Path, path: str
) -> None:
    server = live_server(turn_model=write_turn_model(tmp_path / "turns.onnx"))
    speak(server, path)
    assert sum(counted(server).values()) == 1


def test_other_streams_ask_nothing(live_server: Start, tmp_path: Path) -> None:
    server = live_server(turn_model=write_turn_model(tmp_path / "turns.onnx"))
    speak(server, f"/v1/listen?{RAW}")
    assert sum(counted(server).values()) == 0


def test_smart_endpointing_is_refused_where_it_cannot_be(live_server: Start) -> None:
    server = live_server()
    with pytest.raises(Exception, match="400"):
        speak(server, f"/v1/listen?{RAW}&endpointing=smart&resumable=true")
    answer = server.http.post(f"/v1/listen?{RAW}&endpointing=smart", content=bytes(3_200))
    assert answer.status_code == 400
    assert "endpointing: smart is for live streams" in answer.text
