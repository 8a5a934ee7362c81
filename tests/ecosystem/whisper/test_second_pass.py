"""`tutti serve --second-pass whisper:DIR`, with a real model."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.recordings import read_pcm
from model.text.normalization import comparable
from model.whisper import Whisper
from server.models.loading import load_served
from server.recognition.decoding.second_pass import Outcome
from server.recognition.whisper.timed_pass import TimedPass
from server.settings import Settings
from tests.support.audio.speech import SAMPLES
from tests.support.servers.live_server import LiveServer, transcript

NAMES = ("porch_fan", "account_number", "call_back", "garden_gate", "hold_the_line", "order", "percent", "cancel")
THREADS, ROUNDS = 2, 3
pytestmark = pytest.mark.timeout(400)


def pcm_of(name: str) -> np.ndarray[Any, Any]:
    return read_pcm(SAMPLES.parent / f"{name}.flac", 16_000)


def test_a_segment_has_the_same_text_alone_and_among_others(whisper_folder: Path) -> None:
    """One segment a call, and one thread a call: alone, then all at once on two threads, in another order each time."""
    whisper = Whisper.load(whisper_folder, "test", in_words=True, threads=THREADS)
    segments = {name: pcm_of(name) for name in NAMES}
    alone = {name: whisper.read(pcm, "en") for name, pcm in segments.items()}
    assert len({reading.text for reading in alone.values()}) == len(NAMES)

    async def together(names: list[str]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        passes = TimedPass(loop.time, threads=THREADS, timeout_s=300.0, waiting=len(names))
        done: asyncio.Queue[tuple[str, Outcome]] = asyncio.Queue()
        readings = {}

        def read(name: str) -> tuple[()]:
            readings[name] = whisper.read(segments[name], "en")
            return ()

        for name in names:
            passes.submit(
                lambda name=name: read(name),  # type: ignore[misc]
                lambda outcome, name=name: done.put_nowait((name, outcome)),  # type: ignore[misc]
                background=False,
            )
        for _ in names:
            assert (await done.get())[1].error is None
        passes.stop()
        return readings

    for turn in range(ROUNDS):
        names = list(NAMES[turn:] + NAMES[:turn])
        assert asyncio.run(together(names)) == alone


def test_finals_of_the_shipped_model_are_read_by_it(whisper_folder: Path) -> None:
    settings = {"second_pass": f"whisper:{whisper_folder}", "second_pass_timeout_s": 300.0, "finals": "accurate"}
    models, _ = load_served(Settings(model=Path("tutti-small"), **settings))
    pcm = np.concatenate([pcm_of("garden_gate"), np.zeros(24_000, np.int16), pcm_of("percent")])
    with LiveServer(models, **settings) as server:
        with server.listen() as client:
            client.send(pcm)
            frames = client.finish()
        with server.listen(finals="fast") as client:
            client.send(pcm)
            ours = client.finish()
        assert server.metric("tutti_second_decode_seconds_count") == 2
        assert server.metric("tutti_second_decode_fallbacks_total") == 0
    whisper = Whisper.load(whisper_folder, "test", in_words=True)
    assert comparable(whisper.read(pcm_of("garden_gate"), "en").text) in transcript(frames)
    words = [
        word for frame in frames if frame["type"] == "Results" for word in frame["channel"]["alternatives"][0]["words"]
    ]
    assert not any(map(str.isdigit, transcript(frames)))
    assert all(first["end"] <= second["start"] for first, second in pairwise(words))
    assert abs(words[0]["start"] - ours[0]["channel"]["alternatives"][0]["words"][0]["start"]) < 0.5
