"""Recognition in this process: it rejects the same queries and returns the same text as a server."""

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
from server.tools.local import LocalTranscriber, NotRecognized, open_local
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import SpellingModel, silence, spell, spelling_decoder
from tutti_asr_client.messages import Results


def replica(**settings: Any) -> Replica:
    return build_replica(
        Settings(max_streams=2, **settings),
        [LoadedModel.of(SpellingModel(), spelling_decoder(), passes={("accurate", ""): ShoutingDecoder()})],
        {},
        time.perf_counter,
    )


def test_an_unsupported_feature_is_rejected_unless_the_settings_are_lenient() -> None:
    with pytest.raises(NotRecognized, match="diarize"):
        LocalTranscriber(replica(), diarize=True)
    LocalTranscriber(replica(lenient_features=True), diarize=True)  # ignored
    with pytest.raises(NotRecognized, match="redact"):
        LocalTranscriber(replica(lenient_features=True), redact="name")


def test_bad_parameters_and_unsupported_key_terms_are_rejected() -> None:
    with pytest.raises(NotRecognized, match="endpointing"):
        LocalTranscriber(replica(), endpointing="soon")
    with pytest.raises(NotRecognized, match="beam decoder"):
        LocalTranscriber(replica(), keyterm="foo")


@pytest.mark.parametrize(
    ("live", "finals", "text"),
    [
        (True, "auto", "hello there"),
        (False, "auto", "hello THERE"),
        (False, "fast", "hello there"),
        (True, "accurate", "hello THERE"),
    ],
)
def test_a_recording_gets_its_words_in_a_final_result(live: bool, finals: str, text: str) -> None:
    async def pcm() -> AsyncIterator[bytes]:
        audio = spell("hello there").tobytes() + silence(0.5).tobytes()
        for start in range(0, len(audio), 3_001):  # an odd size: splits samples between chunks
            yield audio[start : start + 3_001]

    async def run() -> list[str]:
        served = replica(finals=finals)
        await served.models.start()
        try:
            messages = [m async for m in LocalTranscriber(served, live=live).stream(pcm())]
        finally:
            await asyncio.to_thread(served.models.stop)
        return [m.text for m in messages if isinstance(m, Results) and m.is_final and m.text]

    assert asyncio.run(run()) == [text]


def test_any_number_of_concurrent_recordings_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "load_served", lambda _: ([LoadedModel.of(SpellingModel(), spelling_decoder())], {}))
    monkeypatch.setattr(Capacity, "streams", lambda _: 4)  # live ones; a server would refuse more

    async def pcm() -> AsyncIterator[bytes]:
        yield spell("hello").tobytes() + silence(0.5).tobytes()

    async def read(transcriber: LocalTranscriber) -> str:
        messages = [m async for m in transcriber.stream(pcm())]
        return " ".join(m.text for m in messages if isinstance(m, Results) and m.is_final and m.text)

    async def run() -> list[str]:
        async with open_local(Settings()) as transcriber:
            return await asyncio.gather(*(read(transcriber) for _ in range(40)))

    assert asyncio.run(run()) == ["hello"] * 40
