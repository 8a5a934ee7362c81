"""The recogniser in this process: its queries are refused where a server would refuse them, and it hears the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batching.capacity import Capacity
from server.models.loading import LoadedModel
from server.replica import Replica, build_replica
from server.settings import Settings
from server.tools import local
from server.tools.local import LocalTranscriber, NotRecognised, open_local
from tests.support.servers.spelling import SpellingModel, silence, spell, spelling_decoder
from tutti_asr_client.messages import Results


def replica(**settings: Any) -> Replica:
    return build_replica(
        Settings(max_streams=2, **settings),
        [LoadedModel.of(SpellingModel(), spelling_decoder())],
        None,
        time.perf_counter,
    )


def test_a_feature_that_is_not_there_is_refused_unless_the_settings_are_lenient() -> None:
    with pytest.raises(NotRecognised, match="diarize"):
        LocalTranscriber(replica(), diarize=True)
    LocalTranscriber(replica(lenient_features=True), diarize=True)  # ignored
    with pytest.raises(NotRecognised, match="redact"):
        LocalTranscriber(replica(lenient_features=True), redact="pci")


def test_a_bad_parameter_and_useless_key_terms_are_refused() -> None:
    with pytest.raises(NotRecognised, match="endpointing"):
        LocalTranscriber(replica(), endpointing="soon")
    with pytest.raises(NotRecognised, match="beam decoder"):
        LocalTranscriber(replica(), keyterm="foo")


def test_a_recording_gives_its_words_and_a_final_result() -> None:
    async def pcm() -> AsyncIterator[bytes]:
        audio = spell("hello there").tobytes() + silence(0.5).tobytes()
        for start in range(0, len(audio), 3_001):  # samples are cut in two
            yield audio[start : start + 3_001]

    async def run() -> list[str]:
        served = replica()
        await served.models.start()
        try:
            messages = [m async for m in LocalTranscriber(served).stream(pcm())]
        finally:
            await asyncio.to_thread(served.models.stop, 5.0)
        return [m.text for m in messages if isinstance(m, Results) and m.is_final and m.text]

    assert asyncio.run(run()) == ["hello there"]


def test_however_many_recordings_come_at_once_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "load_served", lambda _: ([LoadedModel.of(SpellingModel(), spelling_decoder())], None))
    monkeypatch.setattr(Capacity, "possible", lambda _: 4.0)  # live streams; a server would take no more

    async def pcm() -> AsyncIterator[bytes]:
        yield spell("hello").tobytes() + silence(0.5).tobytes()

    async def read(transcriber: LocalTranscriber) -> str:
        messages = [m async for m in transcriber.stream(pcm())]
        return " ".join(m.text for m in messages if isinstance(m, Results) and m.is_final and m.text)

    async def run() -> list[str]:
        async with open_local(Settings()) as transcriber:
            return await asyncio.gather(*(read(transcriber) for _ in range(40)))

    assert asyncio.run(run()) == ["hello"] * 40
