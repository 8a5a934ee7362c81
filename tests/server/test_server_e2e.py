"""The real app on a real socket: each client gets the results of its own audio only, and every slot is freed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from server.recognition.steps import Auxiliary
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.level_vad import LevelVad
from tests.support.servers.recognizers.spelling import CONFIG, GatedSpellingModel, SpellingModel, silence, spell

Start = Callable[..., LiveServer]


def distinct_words(count: int) -> list[str]:
    """Four-letter words that all differ, so that text of another stream shows."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [letters[i % 26] + letters[(i * 7 + i // 26) % 26] + letters[(i * 11) % 26] + "o" for i in range(count)]


def test_the_handshake_names_the_request_and_the_ignored_parameters(live_server: Start) -> None:
    with live_server().listen(smart_format="true", filler_words="true", model="nova-3") as client:
        assert client.socket.response is not None
        headers = client.socket.response.headers
        client.send(spell("a"))
        frames = client.finish()
    assert headers["dg-request-id"] == frames[0]["metadata"]["request_id"] == frames[-1]["request_id"]
    assert headers["x-ignored-params"] == "filler_words"
    assert "Sec-WebSocket-Extensions" not in headers


def test_finalize_takes_no_longer_than_a_step(live_server: Start) -> None:
    """The silent steps of the flush run back to back, not in real time, which would delay every answer."""
    server = live_server()
    waits: list[float] = []
    with server.listen() as client:
        for _ in range(20):
            client.send(spell("one")[:-100])
            before = server.replica.models.default.metrics.batches.value
            asked_s = time.perf_counter()
            client.say("Finalize")
            client.until(lambda f: f.get("from_finalize", False))
            waits.append(time.perf_counter() - asked_s)
            steps = server.replica.models.default.metrics.batches.value - before
            assert steps <= 3 + 1 + CONFIG.flush_steps, "the audio, its unfinished step, the flush"
        client.finish()
    assert min(waits) < CONFIG.step_samples / CONFIG.sample_rate


def test_audio_of_any_rate_and_channels(live_server: Start) -> None:
    server = live_server()
    with server.listen(sample_rate=8_000) as client:
        client.send(spell("telephone", rate=8_000))
        assert transcript(client.finish()) == "telephone"
    both = np.stack([spell("left"), spell("rest")], axis=1)
    with server.listen(channels=2, multichannel="true") as client:
        client.send(both)
        frames = client.finish()
    finals = {f["channel_index"][0]: transcript([f]) for f in frames if f["type"] == "Results"}
    assert finals == {0: "left", 1: "rest"}
    assert frames[-1]["channels"] == 2


def test_a_client_faster_than_the_engine_is_slowed_down_and_not_cut_off(live_server: Start) -> None:
    server = live_server(max_backlog_s=3.0)
    text = " ".join(distinct_words(60))
    audio = spell(text)
    with server.listen(endpointing="false") as client:
        for start in range(0, len(audio), 16_000):
            client.send(audio[start : start + 16_000])
        assert transcript(client.finish()) == text


async def test_concurrent_streams_that_end_in_every_way_get_only_their_own_text(live_server: Start) -> None:
    server = live_server(model=SpellingModel(lookahead=5), idle_timeout_s=0.8, max_streams=40, max_batch=16)
    ends = ["finish", "vanish", "leave", "idle", "finalize"]

    async def one(name: str, end: str) -> None:
        text = " ".join([name] * 4)
        audio = spell(text).tobytes()
        async with connect(server.url(interim_results="true"), compression=None) as socket:
            interims: list[str] = []

            async def read() -> None:
                async for message in socket:
                    frame = json.loads(message)
                    if frame["type"] == "Results":
                        interims.append(frame["channel"]["alternatives"][0]["transcript"])
                        assert text.startswith(interims[-1]) or interims[-1] in text, f"{name}: {interims[-1]!r}"

            reader = asyncio.create_task(read())
            for start in range(0, len(audio), 3_001):  # an odd number: samples are split
                await socket.send(audio[start : start + 3_001])
                await asyncio.sleep(0)
            if end == "vanish":
                socket.transport.abort()
            elif end == "leave":
                await socket.close()
            elif end == "finalize":
                await socket.send('{"type":"Finalize"}')
                await socket.send('{"type":"CloseStream"}')
            elif end == "finish":
                await socket.send('{"type":"CloseStream"}')
            with contextlib.suppress(ConnectionClosed):
                await reader
            if end in ("finish", "finalize", "idle"):
                assert text in interims
            assert socket.close_code == {"idle": 1011, "vanish": 1006}.get(end, 1000)

    streams = [(name, ends[i % len(ends)]) for i, name in enumerate(distinct_words(80))]
    for begin in range(0, len(streams), 40):
        async with asyncio.TaskGroup() as group:
            for name, end in streams[begin : begin + 40]:
                group.create_task(one(name, end))
        await asyncio.to_thread(server.wait_idle)
    assert max(server.model.rows) > 1, "no batch was ever shared"


def test_a_connection_cut_in_mid_batch_leaves_no_state(live_server: Start) -> None:
    """The next stream in the slot starts afresh, and the other stream of the batch gets all of its text."""
    model = GatedSpellingModel()
    server = live_server(model=model, max_streams=2)
    stays, goes = server.listen(), server.listen()
    with stays:
        stays.send(spell("one"))
        stays.say("Finalize")
        stays.until(lambda f: f["from_finalize"])
        model.shut()
        goes.send(spell("xyz"))
        stays.send(spell("two"))
        model.wait_inside()
        goes.vanish()
        server.wait_until(lambda: len(server.replica.sessions) == 1)
        model.open()
        server.wait_until(lambda: server.replica.models.slots_used == 1)
        with server.listen() as fresh:
            fresh.send(spell("new"))
            assert transcript(fresh.finish()) == "new"
        assert transcript(stays.finish()) == "two"
    server.wait_idle()


def test_results_with_voice_activity_do_not_depend_on_which_engine_is_faster(live_server: Start) -> None:
    vad = LevelVad()
    server = live_server(auxiliary={Auxiliary.VAD: vad}, vad="silero")
    hum = np.full(8_000, 100, np.int16)
    audio = np.concatenate([silence(0.5), spell("yes"), hum, silence(1.0), spell("no"), silence(1.0)])
    runs: list[list[Any]] = []

    def batches() -> float:
        return server.replica.models.default.metrics.batches.value

    def at_least(count: float) -> bool:
        return batches() >= count

    for late in (False, True):
        enough = batches() + len(audio) // CONFIG.step_samples
        if late:
            vad.gate.clear()
        with server.listen(interim_results="true", vad_events="true", utterance_end_ms=500) as client:
            client.send(audio)
            if late:
                server.wait_until(partial(at_least, enough))
                vad.gate.set()
            frames = client.finish()
        for frame in frames:
            for per_run in ("metadata", "request_id", "created"):
                frame.pop(per_run, None)
        runs.append(frames)
    assert runs[0] == runs[1]
    assert [f["timestamp"] for f in runs[0] if f["type"] == "SpeechStarted"] == pytest.approx([0.5, 2.24], abs=0.04)
    server.wait_idle()


def test_the_plain_endpoints_answer(live_server: Start) -> None:
    server = live_server()
    with server.http as http:
        assert [http.get(path).status_code for path in ("/healthz", "/docs", "/openapi.json")] == [200] * 3
        with server.listen():
            status = http.get("/v1/status").json()
            taken = (status["system_health"], status["active_stream_requests"], status["slots_used"])
            assert taken == ("Healthy", 1, 1)
